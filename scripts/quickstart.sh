#!/usr/bin/env bash
# Installs mt into .venv, then trains, translates and scores on the demonstration corpus. It takes
# minutes on two cores. If it is interrupted, run it again: it resumes.
#   bash scripts/quickstart.sh

source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
prepare_environment
mt=.venv/bin/mt

say "training on data/demo (configs/tiny.yaml, run directory runs/tiny)"
"$mt" train --config tiny.yaml
say "translating data/demo/test.de to runs/tiny-test.en"
"$mt" translate --model runs/tiny data/demo/test.de -o runs/tiny-test.en
say "scoring runs/tiny-test.en against data/demo/test.en"
"$mt" evaluate --hyp runs/tiny-test.en --ref data/demo/test.en
# A sentence that is not in the training data.
sentence='Gestern hat der Bäcker seiner Tochter eine rote Tasche gekauft.'
say "translating: $sentence"
"$mt" translate --model runs/tiny <<<"$sentence"

cat >&2 <<NEXT

Next:
  source .venv/bin/activate
  echo '$sentence' | mt translate --model runs/tiny
  mt inspect model --config base.yaml
  mt train --config multi30k.yaml --set data.root=FOLDER    data/README.md: where to get it
  mt --help
NEXT
