package localuser

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// The layout of a look-up by sock_diag(7), struct inet_diag_req_v2, and of its answer, struct inet_diag_msg. Both have
// the same id: ports and addresses in the network's order, an interface and a cookie.
const (
	diagByFamily = 20 // SOCK_DIAG_BY_FAMILY
	diagHeader   = unix.SizeofNlMsghdr
	diagIDSize   = 48
	diagSockets  = 36 // bytes of an id that are its ports and addresses

	requestID, requestSize = diagHeader + 8, diagHeader + 8 + diagIDSize
	answerID, answerSize   = diagHeader + 4, diagHeader + 4 + diagIDSize + 20
	answerUID, answerInode = answerSize - 8, answerSize - 4
)

// askOwner asks the kernel for the user id of one socket: unlike a table, that takes the same time and memory however
// many sockets the host has. An error means that this kernel, or this process's sandbox, does not answer.
func askOwner(local, remote netip.AddrPort) (uid int, ok bool, err error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return 0, false, err
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 1}); err != nil {
		return 0, false, err
	}
	request, order := make([]byte, requestSize), binary.NativeEndian
	order.PutUint32(request, requestSize)
	order.PutUint16(request[4:], diagByFamily)
	order.PutUint16(request[6:], unix.NLM_F_REQUEST)
	from, to := local.Addr().Unmap(), remote.Addr().Unmap()
	request[diagHeader], request[diagHeader+1] = unix.AF_INET6, unix.IPPROTO_TCP
	if from.Is4() {
		request[diagHeader] = unix.AF_INET
	}
	order.PutUint32(request[diagHeader+4:], ^uint32(0)) // any state
	id := request[requestID:]
	binary.BigEndian.PutUint16(id, local.Port())
	binary.BigEndian.PutUint16(id[2:], remote.Port())
	copy(id[4:20], from.AsSlice())
	copy(id[20:36], to.AsSlice())
	order.PutUint64(id[40:], ^uint64(0)) // no cookie
	if err := unix.Sendto(fd, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, false, err
	}
	answer := make([]byte, 4<<10)
	n, _, err := unix.Recvfrom(fd, answer, 0)
	if err != nil {
		return 0, false, err
	}
	switch kind := order.Uint16(answer[4:]); {
	case n >= diagHeader+4 && kind == unix.NLMSG_ERROR:
		if e := unix.Errno(-int32(order.Uint32(answer[diagHeader:]))); e != unix.ENOENT {
			return 0, false, e
		}
		return 0, false, nil
	case n < answerSize || kind != diagByFamily:
		return 0, false, fmt.Errorf("an answer of %d bytes and type %d", n, kind)
	}
	// Where no socket has these addresses, the kernel answers with one that listens.
	same := string(answer[answerID:answerID+diagSockets]) == string(id[:diagSockets])
	return int(order.Uint32(answer[answerUID:])), same && order.Uint32(answer[answerInode:]) != 0, nil
}
