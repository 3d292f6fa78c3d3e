# SPDX-License-Identifier: Apache-2.0
"""One vision-language-action model that acts and talks, without its words delaying its hands."""
