# What scripts/test and scripts/demo share: everything a fresh machine needs, and nothing twice.
# Sourced from the repository's root. Nothing here gives up unless there is no usable Python: leave_out notes
# what is missing, and tell_left_out prints it at the end.

VENV=.venv
LEFT_OUT=()

# The lab: two rxe devices, in a VM where this kernel has none, and the pyverbs that drives them.
LAB_PACKAGES=(python3-venv python3-pyverbs rdma-core ibverbs-providers iproute2 kmod tcpdump)
# Booting that VM; its starter asks file which kernel an image is.
VM_PACKAGES=(qemu-system-x86 busybox-static file linux-image-amd64)
# What `rocekit record` puts into programs is built from C.
RECORD_PACKAGES=(libc6-dev libibverbs-dev librdmacm-dev)
# Programs that nobody here wrote: the tests compare with what they say and do.
PEER_PACKAGES=(ibverbs-utils rdmacm-utils perftest qperf ucx-utils libfabric-bin tshark zstd fish zsh groff-base chromium graphviz)
# Compiling the loops over packets.
COMPILER_PACKAGES=(gcc libc6-dev python3-dev)
# What making the virtual environment, where Python cannot, and compiling wait for: these come first.
FIRST_PACKAGES=(python3-venv "${COMPILER_PACKAGES[@]}" "${RECORD_PACKAGES[@]}")

say() { printf '== %s\n' "$*"; }

leave_out() { LEFT_OUT+=("$*"); }

tell_left_out() {
    local thing
    if [ ${#LEFT_OUT[@]} -eq 0 ]; then
        echo "left out: nothing"
        return
    fi
    echo "left out:"
    for thing in "${LEFT_OUT[@]}"; do echo "  - $thing"; done
}

# Whether kernel $1 has the rxe driver.
kernel_has_rxe() {
    local base
    for base in "/lib/modules/$1" "/usr/lib/modules/$1"; do
        grep -qsE '/rdma_rxe\.ko' "$base/modules.dep" "$base/modules.builtin" && return 0
    done
    return 1
}

# Whether an rxe device can be made in place: the module is there and root here may load it and use it.
# (CAP_NET_ADMIN is bit 12, CAP_SYS_MODULE bit 16, CAP_SYS_ADMIN bit 21.)
rxe_in_place() {
    local rights need=$((1 << 12 | 1 << 21))
    [ "$(id -u)" = 0 ] || return 1
    if [ ! -d /sys/module/rdma_rxe ]; then
        kernel_has_rxe "$(uname -r)" || return 1
        need=$((need | 1 << 16))
    fi
    rights=$((16#$(sed -n 's/^CapEff:[[:space:]]*//p' /proc/self/status)))
    [ $((rights & need)) -eq "$need" ]
}

# Whether /boot holds a kernel with rxe that the VM can boot.
bootable_kernel_with_rxe() {
    local image
    for image in /boot/vmlinuz-*; do
        [ -e "$image" ] && kernel_has_rxe "${image#/boot/vmlinuz-}" && return 0
    done
    return 1
}

# Print those of the Debian packages $@ that are not installed.
missing_packages() {
    local have package
    have=" $(dpkg-query -W -f='${Package} ${db:Status-Status}\n' "$@" 2>/dev/null |
        sed -n 's/ installed$//p' | tr '\n' ' ')"
    for package in "$@"; do
        case $have in *" $package "*) ;; *) echo "$package" ;; esac
    done
}

# Whether the machine whose files are below $1 starts without a kernel from its own /boot, as a container does:
# there is none, and no boot loader has left a hook that waits for one.
boots_no_kernel() {
    ! compgen -G "$1/boot/vmlinuz*" >/dev/null && [ -z "$(ls -A -I initramfs-tools "$1/etc/kernel/postinst.d" 2>/dev/null)" ]
}

# There, the kernel that the lab's VM boots gets no initial RAM disk, which the VM does not use: its package would
# have it made twice, in a minute of a processor's time.
apt_get() {
    local initrd=
    boots_no_kernel "" && initrd=No
    INITRD=$initrd DEBIAN_FRONTEND=noninteractive timeout 1200 apt-get -y -q -o DPkg::Lock::Timeout=300 \
        -o Acquire::http::Timeout=30 -o Acquire::Retries=2 "$@" </dev/null
}

# Install the Debian packages $@ that are missing, or say which are and how to have them.
install_packages() {
    local missing log package
    if ! command -v dpkg-query >/dev/null; then
        leave_out "what needs these Debian packages, or their like (there is no dpkg here): $*"
        return
    fi
    mapfile -t missing < <(missing_packages "$@")
    [ ${#missing[@]} -eq 0 ] && return
    if [ "$(id -u)" != 0 ]; then
        leave_out "what needs these: sudo apt-get install --no-install-recommends ${missing[*]}"
        return
    fi
    log=$(mktemp "${TMPDIR:-/tmp}/rocekit-apt.XXXXXX")
    say "installing ${missing[*]}"
    if [ -z "${APT_UPDATED:-}" ]; then
        apt_get update >"$log" 2>&1 || tail -n 3 "$log" >&2
        APT_UPDATED=yes
    fi
    if ! apt_get install --no-install-recommends "${missing[@]}" >>"$log" 2>&1; then
        # One name that this release does not have shall not keep the others away.
        tail -n 3 "$log" >&2
        for package in "${missing[@]}"; do
            apt_get install --no-install-recommends "$package" >>"$log" 2>&1
        done
    fi
    mapfile -t missing < <(missing_packages "${missing[@]}")
    if [ ${#missing[@]} -eq 0 ]; then
        rm -f "$log"
    else
        leave_out "what needs ${missing[*]}: apt-get could not install them, see $log"
    fi
}

# Install FIRST_PACKAGES, then the Debian packages $@, in the background, until end_installing waits for it and
# takes what it left out. await_first waits for the first.
install_packages_meanwhile() {
    INSTALLING_LEFT=$(mktemp "${TMPDIR:-/tmp}/rocekit-left.XXXXXX")
    {
        LEFT_OUT=()
        install_packages "${FIRST_PACKAGES[@]}"
        : >"$INSTALLING_LEFT.first"
        install_packages "$@"
        [ ${#LEFT_OUT[@]} -eq 0 ] || printf '%s\n' "${LEFT_OUT[@]}" >"$INSTALLING_LEFT"
    } &
    INSTALLING=$!
}

# Wait until FIRST_PACKAGES are there or cannot be had, where they are being installed.
await_first() {
    [ -n "${INSTALLING:-}" ] || return 0
    until [ -e "$INSTALLING_LEFT.first" ] || ! kill -0 "$INSTALLING" 2>/dev/null; do sleep 0.2; done
}

end_installing() {
    local left
    wait "$INSTALLING"
    mapfile -t left <"$INSTALLING_LEFT"
    LEFT_OUT+=("${left[@]}")
    rm -f "$INSTALLING_LEFT" "$INSTALLING_LEFT.first"
    INSTALLING=
}

# Put promtool, which judges the metrics, into $VENV/bin, or say what is missing. Only the program is taken out
# of its Debian package: installed, that would leave a Prometheus server running on port 9090.
have_promtool() {
    local folder
    if command -v promtool >/dev/null || [ -x "$VENV/bin/promtool" ]; then
        return
    fi
    if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
        leave_out "the judgement of promtool (there is no apt-get here): put Prometheus' promtool on PATH"
        return
    fi
    folder=$(mktemp -d "${TMPDIR:-/tmp}/rocekit-promtool.XXXXXX")
    say "fetching promtool"
    (cd "$folder" && apt_get download prometheus >log 2>&1) ||
        { [ "$(id -u)" = 0 ] && apt_get update >>"$folder/log" 2>&1; }
    if (cd "$folder" && { ls prometheus_*.deb || apt_get download prometheus; } >>log 2>&1) &&
        dpkg-deb --fsys-tarfile "$folder"/prometheus_*.deb | tar -xO ./usr/bin/promtool >"$folder/promtool" &&
        [ -s "$folder/promtool" ]; then
        install -m 755 "$folder/promtool" "$VENV/bin/promtool"
    else
        leave_out "the judgement of promtool: apt-get could not fetch the package prometheus, which has it"
    fi
    rm -rf "$folder"
}

usable_python() {
    "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

# Print a Python that can make the virtual environment. The distribution's comes first, since its pyverbs
# is compiled for it.
find_python() {
    local python
    for python in ${PYTHON:-} /usr/bin/python3 python3 python3.14 python3.13 python3.12 python3.11; do
        if usable_python "$python"; then
            command -v "$python"
            return
        fi
    done
    return 1
}

# Make the C of the loops, which needs no Debian package, and compile it when the compiler is there.
compile_loops() {
    "$VENV/bin/python" setup.py -q --version && await_first && "$VENV/bin/python" setup.py -q build_ext --inplace
}

# Compile to bytecode what is imported where it cannot be written: in the emulated machines, and by commands that
# have given up their rights. Most of what pip installs is never imported, and of the rest each module is compiled
# when it is.
compile_imported() {
    local site name wanted=()
    site=$("$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    for name in _distutils_hack __editable__*.py click hypothesis isal numpy sortedcontainers yaml zstandard \
        PIL google matplotlib perfetto polars rich textual; do
        # shellcheck disable=SC2206  # the star is for the file by which Python finds the project
        wanted+=("$site"/$name)
    done
    "$VENV/bin/python" -m compileall -q -x '/tests?/' "${wanted[@]}" >/dev/null 2>&1
    return 0
}

# Have uv install $@: it takes a quarter of the processor time that pip takes. It fails where there is none, and
# where pip is told of another index, which uv does not know.
install_with_uv() {
    [ -x "$VENV/bin/uv" ] || return 1
    ! "$VENV/bin/python" -m pip config list | grep -qE '[.](index-url|no-index)=' || return 1
    "$VENV/bin/uv" pip install -q --no-cache --python "$VENV/bin/python" "$@" </dev/null >"$VENV/uv.log" 2>&1
}

# Install the project with the extras $1. The compiler works beside pip, which has setuptools and Cython by then.
install_compiled() {
    local pip=("$VENV/bin/python" -m pip install --disable-pip-version-check --no-input --no-compile -q) building status
    local first=("setuptools>=77" "Cython>=3.3.1") rest=(--no-build-isolation -e ".[$extras]")
    "${pip[@]}" --only-binary uv uv "${first[@]}" </dev/null 2>/dev/null || "${pip[@]}" "${first[@]}" </dev/null || return 1
    compile_loops </dev/null >"$VENV/compiled.log" 2>&1 &
    building=$!
    ROCEKIT_COMPILED_ELSEWHERE=1 install_with_uv "${rest[@]}" ||
        ROCEKIT_COMPILED_ELSEWHERE=1 "${pip[@]}" "${rest[@]}" </dev/null
    status=$?
    compile_imported
    # Without a compiler the same modules run as plain Python: that is no failure, for setup.py neither.
    wait "$building"
    "$VENV/bin/python" -c 'import sys; from rocekit import _compiled as c; sys.exit(c.state(c.PACKAGE) != c.COMPILED)' ||
        leave_out "compiled loops: the compiler failed, see $VENV/compiled.log"
    return "$status"
}

# Make the virtual environment and install the project in it with the extras $1, unless that was done.
install_project() {
    local extras=$1 python stamp state types
    if ! "$VENV/bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
        # The distribution's Python may lack venv until then; another one is not taken for that.
        usable_python "${PYTHON:-/usr/bin/python3}" || await_first
        if ! python=$(find_python); then
            echo "No Python 3.11 or newer with venv. On Debian 12 or newer:" >&2
            echo "    sudo apt-get install python3-venv" >&2
            echo "elsewhere install one and name it: PYTHON=/path/to/python3 $0" >&2
            return 1
        fi
        say "making $VENV with $python"
        "$python" -m venv --clear "$VENV" || return 1
    fi
    stamp="$VENV/.installed-$extras"
    # What is compiled has its types beside it: a change there, or in the source, means compiling anew.
    mapfile -t types < <(find rocekit -name "*.pxd" | sort)
    state=$(cat pyproject.toml setup.py "${types[@]}" "${types[@]/%pxd/py}" rocekit/packets/*.c rocekit/record/lines/*.c rocekit/machine/*.c 2>/dev/null | sha256sum)
    if [ "$(cat "$stamp" 2>/dev/null)" != "$state" ] || ! "$VENV/bin/rocekit" --version >/dev/null 2>&1; then
        say "installing rocekit[$extras] in $VENV (its loops are compiled, which takes some minutes)"
        if install_compiled "$extras"; then
            echo "$state" >"$stamp"
        elif "$VENV/bin/rocekit" --version >/dev/null 2>&1; then
            leave_out "an up-to-date $VENV: pip could not install rocekit[$extras]; what was there is used"
        else
            echo "pip could not install rocekit[$extras]; is the package index within reach?" >&2
            return 1
        fi
    fi
    # The VM's starter, virtme-run, is looked for on PATH.
    PATH="$PWD/$VENV/bin:$PATH"
    export PATH
}

# Everything: the extras $1, and the Debian packages named after it.
set_up() {
    local extras=$1 status packages=("${@:2}" "${LAB_PACKAGES[@]}")
    if ! rxe_in_place; then
        if [ "$(uname -m)" = x86_64 ]; then
            packages+=("${VM_PACKAGES[@]}")
            if bootable_kernel_with_rxe; then
                packages=("${packages[@]/linux-image-amd64/}")
            fi
        else
            leave_out "the lab: this kernel has no rxe that we may load, and its VM is for x86_64"
        fi
    fi
    # A job in the background does not hear Ctrl-C.
    trap 'kill $(jobs -p) 2>/dev/null; exit 130' INT TERM
    # shellcheck disable=SC2068  # an empty name, left by the line above, is dropped here
    install_packages_meanwhile ${packages[@]}
    install_project "$extras"
    status=$?
    end_installing
    trap - INT TERM
    return "$status"
}
