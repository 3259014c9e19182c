package verbs

import (
	"encoding/binary"
	"fmt"
	"math"
	"time"

	"github.com/cascadeinfer/cascade/migrator/device/verbs"
)

// of the grant
const (
	endpointSize     = 32
	remoteMemorySize = 32

	maxBuffers     = 64
	maxBufferBytes = 1 << 30 // bytes
	maxAsked       = 4096    // blocks of one ask
	maxAskBytes    = 4 + 4*maxAsked

	linkInfiniBand = 1
	linkEthernet   = 2
)

// endpoint is one end of a connection, as the other end needs to know it.
type endpoint struct {
	gid        [16]byte
	pair, psn  uint32
	lid        uint16
	mtu, reads uint8
	link       uint8
	version    uint8 // of RoCE

	index uint8 // of the GID in its port's table; not sent
}

// setGID sets the address of the endpoint.
func (e *endpoint) setGID(g verbs.GID) {
	e.gid, e.index = g.Address, g.Index
	switch {
	case e.link != linkEthernet:
	case g.RoutedIP:
		e.version = 2
	default:
		e.version = 1
	}
}

func (e endpoint) append(dst []byte) []byte {
	dst = append(dst, e.gid[:]...)
	dst = binary.LittleEndian.AppendUint32(dst, e.pair)
	dst = binary.LittleEndian.AppendUint32(dst, e.psn)
	dst = binary.LittleEndian.AppendUint16(dst, e.lid)
	return append(dst, e.mtu, e.reads, e.link, e.version, 0, 0)
}

// parseEndpoint decodes an endpoint and checks that its fields are in range.
func parseEndpoint(b []byte) (endpoint, error) {
	if len(b) != endpointSize {
		return endpoint{}, fmt.Errorf("end: %d bytes, want %d", len(b), endpointSize)
	}
	e := endpoint{
		pair: binary.LittleEndian.Uint32(b[16:]), psn: binary.LittleEndian.Uint32(b[20:]), lid: binary.LittleEndian.Uint16(b[24:]),
		mtu: b[26], reads: b[27], link: b[28], version: b[29],
	}
	copy(e.gid[:], b)
	if e.pair >= 1<<24 || e.psn >= 1<<24 || e.mtu < 1 || e.mtu > 5 || e.reads < 1 || e.link != linkInfiniBand && e.link != linkEthernet || e.version > 2 {
		return endpoint{}, fmt.Errorf("end: pair %d, packet %d, MTU %d, %d reads, link layer %d, version %d", e.pair, e.psn, e.mtu, e.reads, e.link, e.version)
	}
	return e, nil
}

// remoteMemory is the source's memory that the receiver reads: a pool, or bounce buffers.
type remoteMemory struct {
	base        uint64
	key         uint32
	buffers     uint32        // 0 means the pool
	left        time.Duration // of the grant
	bufferBytes uint64        // bytes of a buffer
}

func (k remoteMemory) append(dst []byte) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, k.base)
	dst = binary.LittleEndian.AppendUint32(dst, k.key)
	dst = binary.LittleEndian.AppendUint32(dst, k.buffers)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(k.left))
	return binary.LittleEndian.AppendUint64(dst, k.bufferBytes)
}

// parseRemoteMemory decodes the remote memory of a pool of so many bytes with blocks of
// so many.
func parseRemoteMemory(b []byte, size, block int64) (remoteMemory, error) {
	if len(b) != remoteMemorySize {
		return remoteMemory{}, fmt.Errorf("key: %d bytes, want %d", len(b), remoteMemorySize)
	}
	k := remoteMemory{
		base: binary.LittleEndian.Uint64(b), key: binary.LittleEndian.Uint32(b[8:]), buffers: binary.LittleEndian.Uint32(b[12:]),
		left: time.Duration(binary.LittleEndian.Uint64(b[16:])), bufferBytes: binary.LittleEndian.Uint64(b[24:]),
	}
	reach := uint64(size)
	if k.buffers > 0 {
		if k.buffers < 2 || k.buffers > maxBuffers || k.bufferBytes > maxBufferBytes || k.bufferBytes < uint64(block) {
			return remoteMemory{}, fmt.Errorf("key: %d buffers of %d bytes, for blocks of %d", k.buffers, k.bufferBytes, block)
		}
		reach = uint64(k.buffers) * k.bufferBytes
	}
	if k.left < 0 || k.buffers == 0 && k.bufferBytes != 0 || k.base > math.MaxUint64-reach {
		return remoteMemory{}, fmt.Errorf("key: a grant of %v, buffers of %d bytes, %d bytes from %#x", k.left, k.bufferBytes, reach, k.base)
	}
	return k, nil
}

// appendAsk appends an ask.
func appendAsk(dst []byte, buffer uint32, blocks []uint32) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, buffer)
	for _, b := range blocks {
		dst = binary.LittleEndian.AppendUint32(dst, b)
	}
	return dst
}

// parseAsk decodes an ask for blocks of a pool of so many, and appends the blocks to dst.
func parseAsk(dst []uint32, b []byte, pool int) (buffer uint32, blocks []uint32, err error) {
	if len(b) < 8 || len(b)%4 != 0 || len(b) > maxAskBytes {
		return 0, dst, fmt.Errorf("ask: %d bytes, want a buffer and up to %d blocks of 4", len(b), maxAsked)
	}
	buffer = binary.LittleEndian.Uint32(b)
	for b = b[4:]; len(b) > 0; b = b[4:] {
		block := binary.LittleEndian.Uint32(b)
		if int64(block) >= int64(pool) {
			return 0, dst, fmt.Errorf("ask: block %d of a pool of %d", block, pool)
		}
		dst = append(dst, block)
	}
	return buffer, dst, nil
}

// pathTo returns the path from one endpoint to another.
func (e endpoint) pathTo(n *nic, at portState, to endpoint) (*verbs.Path, error) {
	if e.link != to.link {
		return nil, fmt.Errorf("the local port is %s, the peer's is %s: they are on different fabrics", linkName(e.link), linkName(to.link))
	}
	if e.version != to.version && e.version != 0 && to.version != 0 {
		return nil, fmt.Errorf("the local port uses RoCE v%d, the peer v%d: set gid to an address of one version on both", e.version, to.version)
	}
	p := &verbs.Path{
		GID: to.gid, Pair: to.pair, PeerPSN: to.psn, LocalPSN: e.psn, LID: to.lid, GIDIndex: e.index, Port: at.port.Number,
		MTU: min(e.mtu, to.mtu), Reads: min(n.device.Limits.InitiatorReads, to.reads), PeerReads: e.reads, Timeout: timeout, Retries: retries, Hops: hops,
		TrafficClass: n.config.TrafficClass, ServiceLevel: n.config.ServiceLevel,
	}
	if to.gid != [16]byte{} && (to.link == linkEthernet || to.lid == 0 || at.port.Routed) {
		p.Global = 1
	}
	return p, nil
}

func linkName(l uint8) string {
	if l == linkInfiniBand {
		return "InfiniBand"
	}
	return "Ethernet"
}
