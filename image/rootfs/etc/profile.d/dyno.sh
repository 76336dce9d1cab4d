# /etc/profile sets PATH anew for login shells, and so loses the stack.
PATH="/opt/venv/bin:$PATH"
export PATH
