# Read by interactive shells.
[ -n "$PS1" ] || return
shopt -s checkwinsize
# The uid may have no name (--user 4242), which \u would show as "I have no name!".
PS1='dyno:\w\$ '
# An interactive bash ignores SIGTERM, so that `docker stop` would wait ten seconds and then kill it.
trap 'exit 143' TERM
alias ls='ls --color=auto' ll='ls -l'
