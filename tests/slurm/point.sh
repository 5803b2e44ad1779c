# point.sh NAME OUTPUT COMMAND: say that the point starts, work, leave the output whole or not at all
set -euo pipefail
echo "$1" >> starts
bash -c "$3" > "$2.part"
mv "$2.part" "$2"
