"""Names of the parameters that a proximal term adds to a checkpoint."""

ANCHOR = ".anchor"  # follows the name of a trained parameter
MU = "proximal_mu"
