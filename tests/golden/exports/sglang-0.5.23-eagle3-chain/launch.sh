#!/bin/sh
# sage_tune profile tiny-llava-ov-cpu 0123456789ab, lowered e8ec9448a23c (4,1,4)
set -eu
exec python -m sglang.launch_server \
  --model-path org/target \
  --speculative-algorithm EAGLE3 \
  --speculative-draft-model-path org/head \
  --speculative-num-steps 4 \
  --speculative-eagle-topk 1 \
  --speculative-num-draft-tokens 5 \
  --speculative-accept-threshold-single 1.0 \
  --speculative-accept-threshold-acc 1.0 \
  --speculative-adaptive \
  --speculative-adaptive-config adaptive.json \
  "$@"
