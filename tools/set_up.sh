#!/usr/bin/env bash
# Set up the environment that `make` works in, unless it is there already:
#
#     tools/set_up.sh env           and say where it is
#     tools/set_up.sh path          and print the path of its interpreter alone
#     tools/set_up.sh run ARGS...   and run that interpreter with ARGS
#     tools/set_up.sh uv ARGS...    run uv alone
#
# uv does the work: it installs what requirements/ lists, from its cache if it
# can, and compiles mmcv for the torch that is listed. `make help` tells the
# variables.
set -euo pipefail
cd "$(dirname "$0")/.."

UV_VERSION=0.13.8  # fetched by pip if there is no uv, or one older than...
OLDEST_UV=0.13
HEARTBEAT=${CLUSTR_MM_HEARTBEAT:-15}  # seconds between two signs of life

stack=${CLUSTR_MM_STACK:-current}
case $stack in
  current) pythons='>=3.10,<3.15' environment=$PWD/.venv ;;
  upstream) pythons='>=3.10,<3.12' environment=$PWD/.venv-upstream ;;
  *) echo "CLUSTR_MM_STACK=$stack is neither current nor upstream" >&2; exit 1
esac
lock=requirements/$stack.txt
python=$environment/bin/python
log=$PWD/build/set_up_$stack.log
torch=${CLUSTR_MM_TORCH:-} mmcv=${CLUSTR_MM_MMCV:-}
essential='torch mmengine mmcv pytest ruff'
the_rest='torchvision mmcv.ops mmpretrain mmseg mmdet mmdet.datasets mmpose
  mmpose.datasets xtcocotools.mask'

say() { printf '%s\n' "$@" >&2; }
fail() { say '' "$@"; exit 1; }

# --------------------------------------------------------------------- uv

find_uv() {
  uv=$(command -v uv) && is_new_enough && return
  uv=${XDG_CACHE_HOME:-$HOME/.cache}/clustr_mm/uv-$UV_VERSION/bin/uv
  [ -x "$uv" ] && return
  local any
  for any in python3 python3.1{4,3,2,1,0} python; do
    $any -c 'import ensurepip, venv' 2> /dev/null && break
  done || fail 'Neither uv nor a Python with venv was found, to fetch uv.' \
    'Install one of them (Debian: apt-get install python3 python3-venv; uv:' \
    'https://docs.astral.sh/uv/getting-started/installation).'
  step "uv $UV_VERSION" fetch_uv "$any" "${uv%/bin/uv}"
}

is_new_enough() {
  local found
  found=$("$uv" --version | cut -d ' ' -f 2)
  printf '%s\n' "$OLDEST_UV" "$found" | sort -C -V
}

fetch_uv() {
  rm -rf "$2.partial" "$2"
  "$1" -m venv "$2"
  "$2/bin/python" -m pip install "uv==$UV_VERSION" || { rm -rf "$2"; false; }
}

# ------------------------------------------------------------ environment

# What the environment is made from. If it changes, a new one is made.
recipe() {
  {
    cat "$lock" pyproject.toml
    echo "${UV_PYTHON-}|${UV_TORCH_BACKEND-}|$torch|$mmcv|$(cuda_settings)"
  } | cksum
}

# They decide for which GPUs mmcv's operators are compiled, if for any.
cuda_settings() {
  printenv CUDA_HOME CUDA_VISIBLE_DEVICES FORCE_CUDA TORCH_CUDA_ARCH_LIST \
    MMCV_CUDA_ARGS || true
}

is_ready() {
  [ -x "$python" ] && [ "$(cat "$environment/ready" 2> /dev/null)" = "$(recipe)" ]
}

ensure() {
  is_ready && return
  mkdir -p build
  # What runs below inherits the lock: who comes next waits for what a killed
  # set-up has left running.
  exec 9> "$environment.lock"
  if command -v flock > /dev/null && ! flock -n 9; then
    say 'Waiting for another set-up in this checkout to end.'
    flock 9
    is_ready && return
  fi
  : > "$log"
  say "Setting up $environment. The first time takes a quarter of an hour on" \
    "two cores, most of it to compile mmcv. Output: $log"
  set_up
  recipe > "$environment/ready"
  say 'The environment is set up.'
}

set_up() {
  # Python is not to find the checkout, nor uv to count as a part of make.
  unset PYTHONHOME MAKEFLAGS MAKELEVEL
  export UV_LOCK_TIMEOUT=${UV_LOCK_TIMEOUT:-7200}  # another may compile mmcv
  export PYTHONPATH=$PWD/tools/xtcocotools_build MAX_JOBS=${MAX_JOBS:-$(jobs_)}
  [ -z "$mmcv" ] && check_compiler
  find_uv
  step 'a virtual environment' \
    "$uv" venv --clear --python "${UV_PYTHON:-$pythons}" "$environment"
  [ -z "$mmcv" ] && check_headers
  step 'packages, and mmcv compiled' install
  step 'a trial import of all of them' try_imports $essential $the_rest
}

# One a core, if the memory is enough: the compiler takes up to 2 GB for a file.
jobs_() {
  local cores pages
  cores=$(getconf _NPROCESSORS_ONLN)
  pages=$(getconf _PHYS_PAGES 2> /dev/null || echo $((cores * 524288)))
  local fitting=$((pages * $(getconf PAGESIZE) / 2147483648))
  echo $((fitting < 1 ? 1 : fitting < cores ? fitting : cores))
}

check_compiler() {
  local compiler=${CXX:-c++} reason
  reason=$($compiler -std=c++17 -fsyntax-only -x c++ -include optional - \
    2>&1 < /dev/null) || fail \
    "No C++17 compiler, to compile mmcv with: ${reason##*$'\n'}" \
    'Install one (Debian: apt-get install g++; Fedora: dnf install gcc-c++;' \
    'macOS: xcode-select --install), or point CXX to one.'
}

check_headers() {
  "$python" -c 'if 1:
    import os, sys, sysconfig
    folder = sysconfig.get_paths()["include"]
    sys.exit(not os.path.exists(os.path.join(folder, "Python.h")))
  ' || fail "$(readlink -f "$python") lacks Python.h, to compile mmcv with." \
    'Install it (Debian: apt-get install python3-dev; Fedora: dnf install' \
    'python3-devel), choose another Python with UV_PYTHON, or let uv fetch' \
    'one with UV_MANAGED_PYTHON=1.'
}

install() {
  local gpus
  gpus=$(nvidia-smi -L 2> /dev/null | sed 's/ (UUID.*//'; cuda_settings)
  set -- --python "$python"
  # uv keeps a compiled mmcv apart by torch's version, and by settings.
  if [ "$gpus" ]; then
    gpus=$(cksum <<< "$gpus" | cut -d ' ' -f 1)
    set -- "$@" --config-settings-package "onedl-mmcv:gpus=$gpus" \
      --config-settings-package "mmcv:gpus=$gpus"
  fi
  if [ -z "$torch$mmcv${UV_TORCH_BACKEND-}" ]; then
    "$uv" pip sync "$@" --require-hashes "$lock"
  else
    install_others "$@"
  fi
}

# Other builds of torch or mmcv, and of the rest what the lock says: its hashes
# are those of the ordinary builds.
install_others() {
  local constraints=build/constraints_$stack.txt overrides=build/overrides.txt
  sed -n 's/ *\\$//; /^\(torch\|triton\|nvidia-\|cuda-\)/d; /^[a-z]/p' "$lock" \
    > "$constraints"
  printf '%s\n' $torch > "$overrides"
  [ -z "$mmcv" ] || printf '%s ; sys_platform == "never"\n' mmcv onedl-mmcv \
    >> "$overrides"
  set -- "$@" --constraint "$constraints" --override "$overrides"
  # torch first, for mmcv's build to take the one that is there: uv does not
  # look for it in UV_FIND_LINKS otherwise.
  "$uv" pip install "$@" $(grep -oE '^torch(vision)?==[^ ]+' "$lock")
  "$uv" pip install "$@" --group "pyproject.toml:$stack"
  # Not by pyproject.toml, which has mmcv built with the torch beside it.
  [ -z "$mmcv" ] ||
    "$uv" pip install --no-config --python "$python" --no-deps "$mmcv"
}

try_imports() {
  (cd build && env -u PYTHONPATH "$python" -c '
import importlib, sys
for name in sys.argv[1:]:
    print("importing", name, flush=True)
    importlib.import_module(name)
' "$@")
}

# ------------------------------------------------- signs of life and advice

# step TITLE COMMAND...: with its output in the log, and in its own process
# group, so that all of it ends when this script is ended.
step() {
  local title=$1 job beat status=0
  shift
  say "  $title"
  set -m
  "$@" >> "$log" 2>&1 &
  job=$!
  heartbeat 9>&- &
  beat=$!
  set +m
  trap 'kill -- -$job -$beat; fail "Interrupted. The same command goes on."' \
    INT TERM HUP
  wait $job || status=$?
  trap - INT TERM HUP
  kill -- -$beat 2> /dev/null || true
  [ $status = 0 ] || fail "This step failed: $title" "$(complaints)" \
    "$(advice)" "The whole output is in $log"
}

heartbeat() {
  SECONDS=0
  while sleep "$HEARTBEAT" && kill -0 $$; do
    say "    $((SECONDS / 60)) min $((SECONDS % 60)) s: $(news)"
  done
}

# How far ninja is with mmcv, or else the last that was heard.
news() {
  local plan
  plan=$(find "$("$uv" cache dir 2> /dev/null)"/sdists-*/*/*mmcv -name build.ninja \
    -newer "$environment.lock" 2> /dev/null | tail -n 1)
  if [ "$plan" ]; then
    echo "$(find "${plan%/*}" -name '*.o' | wc -l) of" \
      "$(grep -c '^build .*\.o: ' "$plan") files of mmcv compiled"
  else
    tail -n 1 "$log" | cut -c 1-70
  fi
}

complaints() {
  { grep -iE 'error|fatal|killed|cause' "$log" || cat "$log"; } |
    tail -n 8 | cut -c 1-200 | sed 's/^ */  | /'
}

# The first whose pattern the output matches.
advice() {
  local pattern text
  while IFS='~' read -r pattern text; do
    if grep -qE "$pattern" "$log"; then
      echo "$text"
      return
    fi
  done << 'END'
No space left~The disk is full: free some space, or have uv's cache elsewhere (UV_CACHE_DIR).
No interpreter found|python-build-standalone~No suitable Python was found, nor could uv fetch one: install Python 3.10 to 3.14 (3.10 or 3.11 for upstream), or point UV_PYTHON to one.
error sending request|dns error|[Cc]onnect|timed out|NewConnectionError~The package index cannot be reached: check the network, and the proxy and index settings of uv (or of pip, which fetches uv).
[Hh]ash mismatch~What the index has is not what requirements/ lists: check the index settings of uv.
No solution found|no version of|No matching distribution~The package index lacks a version for this Python and platform: check the index settings of uv and CLUSTR_MM_TORCH, or choose another Python with UV_PYTHON.
Killed signal|Cannot allocate memory|signal: 9~The compiler ran out of memory: set MAX_JOBS=1.
not compatible with|not a supported wheel~The wheel of CLUSTR_MM_MMCV is for another Python or platform.
CUDA version .* mismatch~The CUDA compiler (nvcc) and torch are of different CUDA versions: choose the torch that fits with UV_TORCH_BACKEND or CLUSTR_MM_TORCH.
CUDA_HOME~There is a GPU but no CUDA compiler (nvcc): install the CUDA toolkit, or set CUDA_VISIBLE_DEVICES= to compile for the CPU alone.
undefined symbol|torchvision::nms~Compiled operators do not fit this torch: check that what CLUSTR_MM_TORCH and CLUSTR_MM_MMCV name belongs together.
ModuleNotFoundError|ImportError~A package is missing or broken: start anew, with `make clean-env` and, if that does not help, `uv cache clean`.
.~The lines above should tell why. The same command tries again.
END
}

# ------------------------------------------- an environment that is given

check_given() {
  local reason='nothing that runs is there'
  command -v "$python" > /dev/null &&
    reason=$(env -u PYTHONPATH "$python" -c '
import importlib.util, sys
lacking = [n for n in sys.argv[1:] if not importlib.util.find_spec(n)]
sys.exit("it lacks " + ", ".join(lacking) if lacking else 0)
' $essential 2>&1) || fail "CLUSTR_MM_ENV=$python: ${reason##*$'\n'}." \
    'It takes the path of an interpreter, whose environment is used as it is:' \
    'repair that, or unset the variable to have an environment set up.'
}

# ---------------------------------------------------------------- commands

command=${1-}
[ $# = 0 ] || shift
if [ "$command" = uv ]; then
  mkdir -p build
  find_uv
  exec "$uv" "$@"
elif [ "${CLUSTR_MM_ENV-}" ]; then
  python=$CLUSTR_MM_ENV
  check_given
else
  ensure
fi
case $command in
  env) say "Environment: $python" ;;
  path) echo "$python" ;;
  run) exec "$python" "$@" ;;
  *) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2; exit 1 ;;
esac
