# SPDX-License-Identifier: Apache-2.0
"""Model families behind one interface, and what they share: attention over pools, weights, LoRA."""
