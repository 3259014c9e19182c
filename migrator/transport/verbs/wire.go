package verbs

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/cascadeinfer/cascade/migrator/device/verbs"
)

// The messages of the stream are bytes: the hello of package wire and an end, and
// then its welcome, an end and a key; or its refusal. Integers are little-endian.
//
//	end   GID [16], pair u32, packet number u32, LID u16, MTU u8, reads u8, link
//	      layer u8 (1 InfiniBand, 2 Ethernet), RoCE version u8 (0 not known), 0 [2]
//	key   address of the pool's first byte u64, remote key u32, 0 u32, time left of
//	      the grant in ns u64
const (
	endSize = 32
	keySize = 24

	linkInfiniBand = 1
	linkEthernet   = 2
)

// end is one end of a connection, as it is told to the other.
type end struct {
	gid        [16]byte
	pair, psn  uint32
	lid        uint16
	mtu, reads uint8
	link       uint8
	version    uint8 // of RoCE

	index uint8 // of the GID in its port's table; that is nobody else's business
}

// from makes an end be reached by an address.
func (e *end) from(g verbs.GID) {
	e.gid, e.index = g.Address, g.Index
	switch {
	case e.link != linkEthernet:
	case g.RoutedIP:
		e.version = 2
	default:
		e.version = 1
	}
}

func (e end) append(dst []byte) []byte {
	dst = append(dst, e.gid[:]...)
	dst = binary.LittleEndian.AppendUint32(dst, e.pair)
	dst = binary.LittleEndian.AppendUint32(dst, e.psn)
	dst = binary.LittleEndian.AppendUint16(dst, e.lid)
	return append(dst, e.mtu, e.reads, e.link, e.version, 0, 0)
}

// parseEnd decodes an end, whose fields are in range then.
func parseEnd(b []byte) (end, error) {
	if len(b) != endSize {
		return end{}, fmt.Errorf("end: %d bytes, want %d", len(b), endSize)
	}
	e := end{
		pair: binary.LittleEndian.Uint32(b[16:]), psn: binary.LittleEndian.Uint32(b[20:]), lid: binary.LittleEndian.Uint16(b[24:]),
		mtu: b[26], reads: b[27], link: b[28], version: b[29],
	}
	copy(e.gid[:], b)
	if e.pair >= 1<<24 || e.psn >= 1<<24 || e.mtu < 1 || e.mtu > 5 || e.reads < 1 || e.link != linkInfiniBand && e.link != linkEthernet || e.version > 2 {
		return end{}, fmt.Errorf("end: pair %d, packet %d, MTU %d, %d reads, link layer %d, version %d", e.pair, e.psn, e.mtu, e.reads, e.link, e.version)
	}
	return e, nil
}

// key is how a pool is reached.
type key struct {
	base uint64
	key  uint32
	left time.Duration // of the grant
}

func (k key) append(dst []byte) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, k.base)
	dst = binary.LittleEndian.AppendUint32(dst, k.key)
	dst = binary.LittleEndian.AppendUint32(dst, 0)
	return binary.LittleEndian.AppendUint64(dst, uint64(k.left))
}

func parseKey(b []byte) (key, error) {
	if len(b) != keySize {
		return key{}, fmt.Errorf("key: %d bytes, want %d", len(b), keySize)
	}
	k := key{base: binary.LittleEndian.Uint64(b), key: binary.LittleEndian.Uint32(b[8:]), left: time.Duration(binary.LittleEndian.Uint64(b[16:]))}
	if k.left < 0 {
		return key{}, fmt.Errorf("key: a grant of %v", k.left)
	}
	return k, nil
}

// path is the way from one end to another.
func (e end) path(n *nic, at place, to end) (*verbs.Path, error) {
	if e.link != to.link {
		return nil, fmt.Errorf("this side's port speaks %s, the peer's %s: they are on different fabrics", link(e.link), link(to.link))
	}
	if e.version != to.version && e.version != 0 && to.version != 0 {
		return nil, fmt.Errorf("this side speaks RoCE v%d, the peer v%d: name an address of both (gid)", e.version, to.version)
	}
	p := &verbs.Path{
		GID: to.gid, Pair: to.pair, TheirPSN: to.psn, OwnPSN: e.psn, LID: to.lid, GIDIndex: e.index, Port: at.port.Number,
		MTU: min(e.mtu, to.mtu), Reads: min(n.device.Limits.OwnReads, to.reads), TheirReads: e.reads, Timeout: timeout, Retries: retries, Hops: hops,
		TrafficClass: n.config.TrafficClass, ServiceLevel: n.config.ServiceLevel,
	}
	if to.gid != [16]byte{} && (to.link == linkEthernet || to.lid == 0 || at.port.Routed) {
		p.Global = 1
	}
	return p, nil
}

func link(l uint8) string {
	if l == linkInfiniBand {
		return "InfiniBand"
	}
	return "Ethernet"
}
