"""Every treatment of a study, predicted from the trace of one of them."""
