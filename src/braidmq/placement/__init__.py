"""Which clients should be at home at which servers (Tanaka et al. 2021): the model, plans, and how good they are.

Pure, and nothing but numpy and scipy: no broker, no Spark, no clock; chance is passed in. `problem` says what is given,
and `model` what an assignment of homes leads to. Import from the modules.
"""
