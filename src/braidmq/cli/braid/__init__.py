"""`ring`, `topics`, `demand` and `trace`: what a broker can say of its braid; `drain`: how it is taken out."""
