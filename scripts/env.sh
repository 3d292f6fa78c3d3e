# SPDX-License-Identifier: Apache-2.0
# `source scripts/env.sh` (bash or zsh, from any folder): this shell gets the environment and the built package,
# so that oxygen_node, oxygen_sim, oxygen_demo and `import oxygen_ros.msg` work by name. Twice is as good as once.
# The paths come from .venv/setup/paths, which `make build` writes; this file only puts them in front.

_oxygen_env() {
  local root variable folder list distro
  if [ -n "${BASH_VERSION:-}" ]; then
    root=${BASH_SOURCE[0]}
  elif [ -n "${ZSH_VERSION:-}" ]; then
    eval 'root=${_oxygen_self}'
  else
    echo "env.sh: source me from bash or zsh" >&2
    return 1
  fi
  root=$(cd -- "$(dirname -- "$root")/.." >/dev/null && pwd -P) || return 1

  if [ ! -f "$root/.venv/setup/paths" ] || [ ! -d "$root/install/oxygen_ros/share/oxygen_ros" ]; then
    echo "env.sh: $root is not built yet: run make build there" >&2
    return 1
  fi
  distro=$(sed -n 's/.*"distro": "\([^"]*\)".*/\1/p' "$root/.venv/setup/source.json")
  if [ "$distro" != "${ROS_DISTRO:-}" ]; then
    if [ -n "$distro" ]; then
      echo "env.sh: built with ROS 2 $distro, this shell has ${ROS_DISTRO:-none}: source /opt/ros/$distro/setup.bash first" >&2
    else
      echo "env.sh: built with ROS 2 from wheels, this shell has ROS 2 $ROS_DISTRO: use another shell, or run make build" >&2
    fi
    return 1
  fi

  if [ "${VIRTUAL_ENV:-}" != "$root/.venv" ]; then
    . "$root/.venv/bin/activate" || return 1
  fi
  while IFS='=' read -r variable folder; do
    eval "list=\${$variable:-}"
    case ":$list:" in
      *":$folder:"*) ;;
      *) export "$variable=$folder${list:+:$list}" ;;
    esac
  done <"$root/.venv/setup/paths"

  # The ROS wheels would start every Python twice to set paths that are set now.
  [ -n "$distro" ] || export _ROS_WHEELS_BOOTSTRAP_COMPLETE=1
  export MUJOCO_GL="${MUJOCO_GL:-egl}" # render without a display
  export HF_HUB_OFFLINE=1              # models and tokenizers are local files, always
  hash -r 2>/dev/null || true
}

[ -z "${ZSH_VERSION:-}" ] || eval '_oxygen_self=${(%):-%x}'
_oxygen_env
_oxygen_status=$?
unset -f _oxygen_env
unset _oxygen_self
[ "$_oxygen_status" -eq 0 ] && unset _oxygen_status || { unset _oxygen_status; return 1 2>/dev/null || exit 1; }
