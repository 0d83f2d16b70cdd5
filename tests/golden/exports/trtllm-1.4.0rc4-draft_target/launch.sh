#!/bin/sh
# sage_tune profile tiny-llava-ov-cpu 0123456789ab, lowered e8ec9448a23c (4,1,4)
set -eu
exec trtllm-serve org/target \
  --config trtllm.yaml \
  "$@"
