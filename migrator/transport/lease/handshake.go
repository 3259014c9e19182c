package lease

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/policies"
)

// A pull begins with two messages: the receiver's hello with its ticket, and the source's answer.
// All integers are little-endian.
//
//	hello     magic "cskv", version 1, 0, receiver length u16, ticket [16], receiver
//	welcome   magic "cskv", version 1, status u8, regions u16, blocks u32, checksum u32,
//	          pool bytes u64, then per region: offset u64, stride u64, bytes u64
//
// Invariants: lengths are checked before anything is allocated for them, and a layout
// that ReadWelcome returns fits its pool.
//
// Versions: 1 is the first. Its field checksum was 0 (crc32) before there was another
// kind.

const (
	pullMagic         = "cskv"
	pullVersion       = 1
	headSize          = 24 // bytes of either message before its variable part
	encodedRegionSize = 24 // bytes of a region

	statusAccepted = 0
	statusRefused  = 1

	// MaxReceiver is the length of the longest receiver name in bytes.
	MaxReceiver = 255
	// MaxRegions bounds the regions of a block: layers × 2 × ranks, with room.
	MaxRegions = 4096
	// MaxWelcome is the length of the longest welcome in bytes.
	MaxWelcome = headSize + MaxRegions*encodedRegionSize
	// MaxHello is the length of the longest hello in bytes.
	MaxHello = headSize + MaxReceiver
)

// Hello is the message that presents a ticket.
type Hello struct {
	Ticket   [transport.TicketSize]byte
	Receiver policies.ReplicaID
}

// Append appends the encoded hello.
func (h Hello) Append(dst []byte) ([]byte, error) {
	if len(h.Receiver) > MaxReceiver {
		return dst, fmt.Errorf("hello: the receiver's name has %d bytes; the limit is %d", len(h.Receiver), MaxReceiver)
	}
	dst = append(dst, pullMagic...)
	dst = append(dst, pullVersion, 0)
	dst = binary.LittleEndian.AppendUint16(dst, uint16(len(h.Receiver)))
	dst = append(dst, h.Ticket[:]...)
	return append(dst, h.Receiver...), nil
}

// ReadHello reads one hello, and no byte after it.
func ReadHello(r io.Reader) (Hello, error) {
	var head [headSize]byte
	if err := readHead(r, head[:]); err != nil {
		return Hello{}, fmt.Errorf("hello: %w", err)
	}
	n := binary.LittleEndian.Uint16(head[6:])
	if head[5] != 0 || n > MaxReceiver {
		return Hello{}, fmt.Errorf("hello: flags %d, receiver of %d bytes: out of range", head[5], n)
	}
	name := make([]byte, n)
	if _, err := io.ReadFull(r, name); err != nil {
		return Hello{}, fmt.Errorf("hello: %w", err)
	}
	return Hello{Ticket: [transport.TicketSize]byte(head[8:]), Receiver: policies.ReplicaID(name)}, nil
}

// AppendWelcome appends the answer that accepts a ticket for a pool of that layout and
// size.
func AppendWelcome(dst []byte, l transport.Layout, size int64) ([]byte, error) {
	if len(l.Regions) > MaxRegions || int64(l.Blocks) > math.MaxUint32 {
		return dst, fmt.Errorf("welcome: %d regions and %d blocks; the limits are %d and %d", len(l.Regions), l.Blocks, MaxRegions, uint32(math.MaxUint32))
	}
	dst = appendHead(dst, statusAccepted)
	dst = binary.LittleEndian.AppendUint16(dst, uint16(len(l.Regions)))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(l.Blocks))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(l.Checksum))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(size))
	for _, r := range l.Regions {
		dst = binary.LittleEndian.AppendUint64(dst, uint64(r.Offset))
		dst = binary.LittleEndian.AppendUint64(dst, uint64(r.Stride))
		dst = binary.LittleEndian.AppendUint64(dst, uint64(r.Bytes))
	}
	return dst, nil
}

// AppendRefusal appends the answer that refuses a ticket.
func AppendRefusal(dst []byte) []byte {
	return append(appendHead(dst, statusRefused), make([]byte, headSize-6)...)
}

// ReadWelcome reads one answer, and no byte after it. It returns the layout and the size
// of the source's pool, or transport.ErrRefused.
func ReadWelcome(r io.Reader) (transport.Layout, int64, error) {
	var head [headSize]byte
	if err := readHead(r, head[:]); err != nil {
		return transport.Layout{}, 0, fmt.Errorf("welcome: %w", err)
	}
	if head[5] == statusRefused {
		return transport.Layout{}, 0, transport.ErrRefused
	}
	regions := int(binary.LittleEndian.Uint16(head[6:]))
	l := transport.Layout{Blocks: int(binary.LittleEndian.Uint32(head[8:])), Checksum: transport.Checksum(binary.LittleEndian.Uint32(head[12:]))}
	size := binary.LittleEndian.Uint64(head[16:])
	if head[5] != statusAccepted || regions > MaxRegions || size > math.MaxInt64 {
		return transport.Layout{}, 0, fmt.Errorf("welcome: status %d, %d regions, pool of %d bytes: out of range", head[5], regions, size)
	}
	body := make([]byte, regions*encodedRegionSize)
	if _, err := io.ReadFull(r, body); err != nil {
		return transport.Layout{}, 0, fmt.Errorf("welcome: %w", err)
	}
	l.Regions = make([]transport.Region, regions)
	for i := range l.Regions {
		b := body[i*encodedRegionSize:]
		l.Regions[i] = transport.Region{
			Offset: int64(binary.LittleEndian.Uint64(b)),
			Stride: int64(binary.LittleEndian.Uint64(b[8:])),
			Bytes:  int64(binary.LittleEndian.Uint64(b[16:])),
		}
	}
	if err := l.Validate(int64(size)); err != nil {
		return transport.Layout{}, 0, fmt.Errorf("welcome: %w", err)
	}
	return l, int64(size), nil
}

func appendHead(dst []byte, status byte) []byte {
	return append(append(dst, pullMagic...), pullVersion, status)
}

// readHead reads the fixed part and checks the fields that both messages begin with.
func readHead(r io.Reader, head []byte) error {
	if _, err := io.ReadFull(r, head); err != nil {
		return err
	}
	if string(head[:4]) != pullMagic {
		return errors.New("the peer does not use the pull protocol")
	}
	if head[4] != pullVersion {
		return fmt.Errorf("the peer uses version %d of the pull protocol, this process version %d", head[4], pullVersion)
	}
	return nil
}
