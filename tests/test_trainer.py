def test_x(tiny_run, run_mt, tiny_corpus):
    r = run_mt("evaluate", "--model", tiny_run, "--src", tiny_corpus/"test.src", "--ref", tiny_corpus/"test.tgt")
    print(r.stdout, r.stderr)
    print(run_mt("translate", "--model", tiny_run, input="eins zwei drei\nvier\n\nneun neun eins sieben null acht\n"))
