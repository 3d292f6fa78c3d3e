# SPDX-License-Identifier: Apache-2.0
"""Runs one vision-language-action model whose texts never delay its actions."""

from pkgutil import extend_path

# The generated messages (oxygen_ros.msg) are only in the installed package: found there also where the source
# tree comes first, as when Python is started in it.
__path__ = extend_path(__path__, __name__)
