#!/bin/sh
# sage_tune profile tiny-llava-ov-cpu 0123456789ab, lowered e8ec9448a23c (4,1,4)
set -eu
exec vllm serve org/target \
  --speculative-config '{"method": "eagle3", "model": "org/head", "num_speculative_tokens": 4, "num_speculative_tokens_per_batch_size": [[1, 1, 4], [2, 1024, 0]], "rejection_sample_method": "standard"}' \
  "$@"
