# SPDX-License-Identifier: Apache-2.0
"""pi0.5: SigLIP tower, Gemma backbone with a bidirectional prefix, adaRMS flow-matching action expert."""
