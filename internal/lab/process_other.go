//go:build !linux

package lab

import "syscall"

// childAttributes puts a child into its own process group, so that Ctrl-C reaches only the lab.
func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
