#!/usr/bin/env bash
# Installs mt into .venv, then runs the lines of the README's quick start: trains on the
# demonstration corpus, translates and scores. It takes minutes on two cores. If it is interrupted,
# run it again: it resumes.
#   bash scripts/quickstart.sh

source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
prepare_environment
source .venv/bin/activate

while read -r line <&3; do
    printf '\n$ %s\n' "$line" >&2
    eval "$line"
done 3<<'LINES'
mt train --config tiny.yaml
echo 'Gestern hat der Bäcker eine rote Tasche gekauft.' | mt translate --model runs/tiny
mt translate --model runs/tiny data/demo/test.de -o runs/tiny-test.en
mt evaluate --hyp runs/tiny-test.en --ref data/demo/test.en
mt report runs/tiny
LINES
