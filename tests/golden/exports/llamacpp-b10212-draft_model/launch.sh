#!/bin/sh
# sage_tune profile tiny-llava-ov-cpu 0123456789ab, lowered e8ec9448a23c (4,1,4)
set -eu
: "${TARGET_GGUF:?set TARGET_GGUF to the file}"
: "${DRAFT_GGUF:?set DRAFT_GGUF to the file}"
exec llama-server \
  --model "$TARGET_GGUF" \
  --model-draft "$DRAFT_GGUF" \
  --spec-type draft-simple \
  --spec-draft-n-max 4 \
  --spec-draft-n-min 0 \
  --spec-draft-p-min 0 \
  "$@"
