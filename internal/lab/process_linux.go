package lab

import "syscall"

// childAttributes puts a child into its own process group, so that Ctrl-C reaches only the lab, and lets the kernel kill it
// when the lab's process dies.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
