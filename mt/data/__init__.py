"""Text becomes batches: takes the data section of a config, gives batches of token ids.

`corpus` reads sentence pairs from `text_files`, or from the `columns` of `table_files` or of a
`datasets_source`; `check` looks for faults before training. `filters` drops pairs that are unfit
for training, `tokenizer` turns lines into ids and back, `store` keeps the ids on disk,
`plan` chooses the sentences of each update, `batches` pads them, `loader` loads them ahead of
training.
"""
