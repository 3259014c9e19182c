// Package childprocess says how processes are started that must not outlive this one.
package childprocess

import "syscall"

// DieWithParent returns attributes by which the kernel kills a child when this process ends in
// any way. For the kernel the parent ends with the thread that started the child: call
// runtime.LockOSThread first where that thread could end earlier. The caller may set further
// fields.
func DieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
