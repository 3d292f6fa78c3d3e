# SPDX-License-Identifier: Apache-2.0
"""One vision-language-action model that acts and talks, without its words delaying its hands."""

from pkgutil import extend_path

# The generated messages (oxygen_ros.msg) are only in the installed package: this finds them there also where
# the source tree comes first, as when Python is started in it.
__path__ = extend_path(__path__, __name__)
