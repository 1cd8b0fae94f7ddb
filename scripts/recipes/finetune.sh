#!/usr/bin/env bash
# Fine-tunes a published Marian model (OPUS-MT) on your own text, and exports the result.
#
#   bash scripts/recipes/finetune.sh Helsinki-NLP/opus-mt-de-en \
#       train.de train.en valid.de valid.en tuned
#
# Arguments: the model, on the hub or a folder; training text, validation text (source, target: line n of one
# is the translation of line n of the other); the folder to write. It gets
#   imported/     the model as it was            run/         the run directory of the training
#   averaged/     the mean of its last weights   before.txt, after.txt   translations of the validation
#   ctranslate2/  an export of averaged/
# If it is interrupted, run it again: it resumes.
#
# Environment:
#   STEPS=1000        updates                    LR=5e-5     peak learning rate; 0 at the end
#   VALID_EVERY=100   updates between checkpoints           AVERAGE=3   checkpoints averaged
#   TOKENS=4000       target tokens per update   EXPORT=ctranslate2   or "ctranslate2 huggingface",
#                                                which needs pip install transformers
#   SET=""            more settings, such as SET="decode.beam_size=4 model.dropout=0.2"
#   MT=mt             the command

set -euo pipefail
if [ $# -ne 6 ]; then
    sed -n '2,/^$/s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
model=$1 train_src=$2 train_tgt=$3 valid_src=$4 valid_tgt=$5 output=$6
steps=${STEPS:-1000}
valid_every=${VALID_EVERY:-100}
average=${AVERAGE:-3}
read -ra mt <<<"${MT:-mt}"
settings=()
for setting in ${SET:-}; do settings+=(--set "$setting"); done

say() { echo "finetune: $*" >&2; }

if [ $(((steps + valid_every - 1) / valid_every)) -lt "$average" ]; then
    say "STEPS=$steps with VALID_EVERY=$valid_every makes fewer than AVERAGE=$average checkpoints:" \
        "raise STEPS, or lower VALID_EVERY or AVERAGE"
    exit 2
fi

mkdir -p "$output"
if [ ! -e "$output/imported" ]; then
    say "importing $model"
    "${mt[@]}" import huggingface "$model" -o "$output/imported"
fi
say "training on $train_src and $train_tgt"
"${mt[@]}" train --config "$output/imported/config.yaml" --run-dir "$output/run" \
    --set "train.init_from=\"$output/imported\"" \
    --set "data.train=[{src: \"$train_src\", tgt: \"$train_tgt\"}]" \
    --set "data.valid={src: \"$valid_src\", tgt: \"$valid_tgt\"}" \
    --set "train.max_steps=$steps" --set "train.valid_every=$valid_every" \
    --set "train.keep_last=$average" --set train.patience=null \
    --set "optim.peak_lr=${LR:-5e-5}" --set "optim.warmup_steps=$((steps / 10 + 1))" \
    --set optim.schedule=cosine --set "batch.tokens_per_update=${TOKENS:-4000}" ${settings[@]+"${settings[@]}"}
rm -rf "$output/averaged"
"${mt[@]}" average "$output/run" --last "$average" -o "$output/averaged"

say "validation set before (first) and after, with a paired significance test"
"${mt[@]}" translate --model "$output/imported" "$valid_src" -o "$output/before.txt" --resume
"${mt[@]}" translate --model "$output/averaged" "$valid_src" -o "$output/after.txt" --resume
"${mt[@]}" evaluate --hyp "$output/before.txt" --hyp "$output/after.txt" --ref "$valid_tgt"

for format in ${EXPORT-ctranslate2}; do
    rm -rf "${output:?}/$format"
    "${mt[@]}" export "$format" --model "$output/averaged" -o "$output/$format"
done
