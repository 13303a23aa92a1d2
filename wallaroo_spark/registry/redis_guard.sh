# Runs a Redis server for as long as its parent process lives. Arguments: the server, and the folder of its files.
#
# The shell is the server's parent, and a child of the process that starts the server. Its standard input is a pipe
# whose other end only that process holds, so `read` returns when it closes the pipe or dies in any way, SIGKILL
# included. PR_SET_PDEATHSIG would end the server as soon as the *thread* that started it ends. The server's pid cannot
# be reused before the server is killed, because only this shell can reap it. After `exec` only the server holds the
# pipe that began as the shell's standard output, so the end of that pipe says that the server has ended.
"$1" "$2/redis.conf" &
echo $!
exec >/dev/null
read -r _
kill -9 $!
wait
rm -rf -- "$2"
