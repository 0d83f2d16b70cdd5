#!/bin/sh
# sage_tune profile tiny-llava-ov-cpu 0123456789ab, lowered 89277ee338c2 (5,2,7)
set -eu
exec trtllm-serve org/target \
  --config trtllm.yaml \
  "$@"
