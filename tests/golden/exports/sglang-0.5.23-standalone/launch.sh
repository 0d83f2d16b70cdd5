#!/bin/sh
# sage_tune profile tiny-llava-ov-cpu 0123456789ab, lowered 89277ee338c2 (5,2,7)
set -eu
exec python -m sglang.launch_server \
  --model-path org/target \
  --speculative-algorithm STANDALONE \
  --speculative-draft-model-path org/draft \
  --speculative-num-steps 5 \
  --speculative-eagle-topk 2 \
  --speculative-num-draft-tokens 8 \
  --speculative-accept-threshold-single 1.0 \
  --speculative-accept-threshold-acc 1.0 \
  "$@"
