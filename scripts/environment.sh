# Sourced by the other scripts, which set `root` first: what every program they start should find in its environment.
# Another Spark's settings would mix its jars with the ones in .venv.
unset SPARK_HOME SPARK_CONF_DIR PYTHONHOME PYTHONPATH PYSPARK_SUBMIT_ARGS PYSPARK_DRIVER_PYTHON
# The tests start hundreds of processes, and each would compile the package again.
unset PYTHONDONTWRITEBYTECODE
export PYSPARK_PYTHON="$root/.venv/bin/python"

# set_up SET "$@": sets .venv up, unless the arguments ask for help. Help installs nothing: where there is no .venv yet it is the
# comment at the top of the script, with the way to all options.
set_up() {
    local set="$1" argument
    shift
    for argument in "$@"; do
        case "$argument" in
            -h | --help)
                if "$root/.venv/bin/python" -c '' 2>/dev/null; then return 0; fi
                sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
                printf '\nThe other options are listed once ./scripts/setup %s has made .venv.\n' "$set"
                exit 0
                ;;
        esac
    done
    # shellcheck disable=SC2086  # SET may have --browser behind it
    "$root/scripts/setup" $set
}
