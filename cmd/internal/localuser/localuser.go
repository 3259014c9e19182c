// Package localuser admits clients on this host by the user that their process runs as.
//
// A Policy asks the kernel for the owner of a client's TCP socket, as identd
// did, and Listen opens a Unix socket, whose clients the kernel names. Both are for one host, where all
// users can connect; they say nothing about clients on other hosts.
//
// Invariant: a client whose user is not known is not admitted, unless every user is.
package localuser

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"
)

// Any, as a name, admits every user.
const Any = "*"

// root may do everything on its host anyway.
const root = 0

// tables are the kernel's tables of TCP sockets, for kernels that do not answer for one.
var tables = [...]string{"/proc/self/net/tcp", "/proc/self/net/tcp6"}

// Policy is the users that are admitted.
type Policy struct {
	uids []int
	any  bool
}

// New returns a Policy for users by name or number. Without any, the user of this
// process is admitted. root always is.
func New(users []string) (*Policy, error) {
	p := &Policy{uids: []int{root}}
	if len(users) == 0 {
		p.uids = append(p.uids, os.Geteuid())
	}
	for _, name := range users {
		if name == Any {
			p.any = true
			continue
		}
		uid, err := strconv.Atoi(name)
		if err != nil {
			u, err := user.Lookup(name)
			if err != nil {
				return nil, err
			}
			if uid, err = strconv.Atoi(u.Uid); err != nil {
				return nil, fmt.Errorf("user %s: id %q is not a number", name, u.Uid)
			}
		}
		p.uids = append(p.uids, uid)
	}
	return p, nil
}

// Admit returns why the client of a connection is not admitted, nil if it is.
func (p *Policy) Admit(client, server netip.AddrPort) error {
	if p.any {
		return nil
	}
	uid, err := OwnerOf(client, server)
	if err != nil {
		return fmt.Errorf("the user of the client is not known: %w", err)
	}
	if !slices.Contains(p.uids, uid) {
		return fmt.Errorf("user %d is not admitted", uid)
	}
	return nil
}

// Describe names the user of the client of a connection on this host by number, such as "uid 1001"; "" where it is
// not known. It asks no directory of users, which might be out of reach.
func Describe(client, server netip.AddrPort) string {
	uid, err := OwnerOf(client, server)
	if err != nil {
		return ""
	}
	return "uid " + strconv.Itoa(uid)
}

// OwnerOf returns the user id of the client's socket of a connection on this host.
func OwnerOf(client, server netip.AddrPort) (uid int, err error) {
	noSocket := fmt.Errorf("no socket from %s to %s", client, server)
	uid, ok, err := askOwner(client, server)
	switch {
	case ok:
		return uid, nil
	case err == nil:
		return 0, noSocket
	}
	for _, path := range tables {
		table, err := os.Open(path)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return 0, err
		}
		uid, ok, err := findOwner(table, client, server)
		table.Close()
		if ok || err != nil {
			return uid, err
		}
	}
	return 0, noSocket
}

// Columns of the kernel's table.
const (
	localColumn, remoteColumn, uidColumn, inodeColumn = 1, 2, 7, 9
)

// findOwner finds the user id of the socket of a table with these addresses. A socket that its process has
// closed has inode 0 and no owner: the kernel lists it as root's, whoever opened it.
func findOwner(table io.Reader, local, remote netip.AddrPort) (uid int, ok bool, err error) {
	lines := bufio.NewScanner(table)
	port := fmt.Appendf(nil, ":%04X ", local.Port())
	for lines.Scan() {
		if !bytes.Contains(lines.Bytes(), port) {
			continue
		}
		f := strings.Fields(lines.Text())
		if len(f) <= inodeColumn || !isAddress(f[localColumn], local) || !isAddress(f[remoteColumn], remote) {
			continue
		}
		uid, err := strconv.Atoi(f[uidColumn])
		return uid, err == nil && uid >= 0 && f[inodeColumn] != "0", nil
	}
	return 0, false, lines.Err()
}

// isAddress reports whether the kernel's text, such as 0100007F:4650, is an address.
func isAddress(text string, want netip.AddrPort) bool {
	ip, port, _ := strings.Cut(text, ":")
	number, err := strconv.ParseUint(port, 16, 16)
	b, bad := hex.DecodeString(ip)
	if err != nil || bad != nil || len(b)%4 != 0 || uint16(number) != want.Port() {
		return false
	}
	for i := 0; i < len(b); i += 4 { // words in the order of the machine's bytes
		binary.NativeEndian.PutUint32(b[i:], binary.BigEndian.Uint32(b[i:]))
	}
	got, ok := netip.AddrFromSlice(b)
	return ok && got.Unmap() == want.Addr().Unmap()
}
