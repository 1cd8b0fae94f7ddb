"""Text becomes batches: takes the data section of a config, gives batches of token ids.

`corpus` reads sentence pairs of any format, `check` looks for faults before training. `tokenizer`
turns lines into ids and back, `store` keeps those of pairs that are fit for training on disk,
`plan` chooses the sentences of each update, `batches` pads them.
"""
