#!/bin/bash
# bench/carry.sh PROGRAM FOLDER
# Copies a built program with all its shared libraries, libc included, into FOLDER, so that it runs
# on a machine where nothing is installed: FOLDER/run ARGS...
set -euo pipefail
program=$1 folder=$2
mkdir -p "$folder/lib"
cp "$program" "$folder/program"
ldd "$program" | grep -o '/[^ ]*' | sort -u | xargs -I{} cp -L {} "$folder/lib/"
cat > "$folder/run" <<'RUN'
#!/bin/sh
here=$(dirname "$(readlink -f "$0")")
exec "$here"/lib/ld-linux-*.so.* --library-path "$here/lib" "$here/program" "$@"
RUN
chmod +x "$folder/run"
echo "$folder: $(du -sh "$folder" | cut -f1)"
