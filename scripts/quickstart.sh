#!/usr/bin/env bash
# Sets mt up in .venv, then trains, translates and scores on the demonstration corpus: minutes on
# two cores. Run again, it takes up where it stopped, or finds all done.
#   bash scripts/quickstart.sh

source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
prepare_environment
mt=.venv/bin/mt

say "training on data/demo (configs/tiny.yaml, run directory runs/tiny)"
"$mt" train --config tiny.yaml
say "translating data/demo/test.de into runs/tiny/test.en"
"$mt" translate --model runs/tiny data/demo/test.de -o runs/tiny/test.en
say "scoring it against data/demo/test.en"
"$mt" evaluate --hyp runs/tiny/test.en --ref data/demo/test.en

cat >&2 <<'NEXT'

Next:
  source .venv/bin/activate
  echo 'Am Montag kauft die Frau einen alten Tisch.' | mt translate --model runs/tiny
  mt inspect model --config base.yaml
  mt train --config multi30k.yaml --set data.root=FOLDER    data/README.md: where to get it
  mt --help
NEXT
