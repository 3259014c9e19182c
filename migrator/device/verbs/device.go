package verbs

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"unsafe"

	"github.com/cascadeinfer/cascade/migrator/device"
)

// Limits are the limits of a device.
type Limits struct {
	Requests       int   // of a completion queue
	Reads          uint8 // RDMA READs that a queue pair serves at a time
	InitiatorReads uint8 // and that it has in flight
	Ports          int   // numbered from 1
	ReadSegments   int   // pieces of local memory that one READ fills
}

// Device is an open device with one protection domain: all objects made in it may be used
// together. It is safe for concurrent use.
type Device struct {
	Name   string
	Limits Limits

	lib     *Library
	context uint64
	domain  uint64
	events  *os.File // becomes readable when an event arrives
}

// OpenDevice opens a device by its name. If there is none of that name, the error lists
// the devices.
func (l *Library) OpenDevice(name string) (_ *Device, err error) {
	d := &Device{Name: name, lib: l}
	var others []string
	fd := uint64(0)
	err = l.forEachDevice(func(list, i uint64) error {
		v := words{1: list, 2: i}
		if err := l.do(getDeviceName, &v, nil); err != nil {
			return err
		}
		if is := device.Text(v[0]); is != name || d.context != 0 {
			others = append(others, is)
			return nil
		}
		v = words{1: list, 2: i}
		if err := l.do(openDevice, &v, nil); err != nil {
			return err
		}
		d.context, fd = v[0], v[1]
		l.devices.Add(1)
		return nil
	})
	if err == nil && d.context == 0 {
		err = fmt.Errorf("no such RDMA device; this host has %q", others)
	}
	if err != nil {
		return nil, fmt.Errorf("verbs: device %s: %w", name, errors.Join(err, d.Close()))
	}
	if err := d.prepare(int(fd)); err != nil {
		return nil, fmt.Errorf("verbs: device %s: %w", name, errors.Join(err, d.Close()))
	}
	return d, nil
}

// prepare reads the limits and makes the protection domain.
func (d *Device) prepare(fd int) error {
	v := words{d.context}
	if err := d.lib.do(queryDevice, &v, nil); err != nil {
		return err
	}
	d.Limits = Limits{
		Requests: int(v[0]), Reads: uint8(min(v[2], 255)), InitiatorReads: uint8(min(v[3], 255)), Ports: int(v[4]), ReadSegments: int(v[6]),
	}
	v = words{d.context}
	if err := d.lib.do(allocPD, &v, nil); err != nil {
		return err
	}
	d.domain = v[0]
	var err error
	d.events, err = newPollableFile(fd, "events of "+d.Name)
	return err
}

// Close closes the device. Everything made in it must have been closed.
func (d *Device) Close() error {
	var err error
	if d.events != nil {
		d.events.Close()
		d.events = nil
	}
	if d.domain != 0 {
		err = d.lib.do(deallocPD, &words{d.domain}, nil)
		d.domain = 0
	}
	if d.context != 0 {
		err = errors.Join(err, d.lib.do(closeDevice, &words{d.context}, nil))
		d.context = 0
		d.lib.devices.Add(-1)
	}
	return err
}

// Port is the state of one port of a device.
type Port struct {
	Number     uint8
	Active     bool
	MTU        uint8 // as verbs numbers it: 1 is 256 bytes, 5 is 4096
	GIDs       int   // entries of its table
	Message    uint32
	LID        uint16
	InfiniBand bool // the link layer; otherwise Ethernet, which requires a GID
	Routed     bool // a GID is required on InfiniBand too
}

// Port reads the state of a port.
func (d *Device) Port(number uint8) (Port, error) {
	v := words{d.context, uint64(number)}
	if err := d.lib.do(queryPort, &v, nil); err != nil {
		return Port{}, fmt.Errorf("verbs: port %d of %s: %w", number, d.Name, err)
	}
	return Port{
		Number: number, Active: v[0] == 4, MTU: uint8(v[1]), GIDs: int(v[2]), Message: uint32(v[3]), LID: uint16(v[4]), InfiniBand: v[5] != 2,
		Routed: v[6]&1 != 0,
	}, nil
}

// GID is one address of a port.
type GID struct {
	Index   uint8
	Address [16]byte
	// RoutedIP means RoCE v2: the address is that of an IP interface.
	RoutedIP bool
}

// GID reads an entry of a port's table. Unset entries have an address of zeros, or are
// errors.
func (d *Device) GID(port, index uint8) (GID, error) {
	g := GID{Index: index}
	v := words{d.context, uint64(port), uint64(index)}
	c := queryGID
	if d.lib.has(queryGIDEx) {
		c = queryGIDEx
	}
	err := d.lib.do(c, &v, unsafe.Pointer(&g.Address))
	if err != nil {
		return GID{}, fmt.Errorf("verbs: GID %d of port %d of %s: %w", index, port, d.Name, err)
	}
	g.RoutedIP = v[0] == 2
	if c == queryGID {
		// Such an old library does not return the version; the kernel does.
		kind, _ := os.ReadFile(fmt.Sprintf("/sys/class/infiniband/%s/ports/%d/gid_attrs/types/%d", d.Name, port, index))
		g.RoutedIP = strings.TrimSpace(string(kind)) == "RoCE v2"
	}
	return g, nil
}

// The kinds of events that are distinguished.
const (
	eventFatal      = 8
	eventPortActive = 9 // followed by: port error, LID change
	eventPKey       = 12
	eventReregister = 17
	eventGID        = 18
)

// Event is an asynchronous event of a device.
type Event struct {
	Text string
	// Fatal means that the device cannot be used until it is opened again.
	Fatal bool
	// AddressChanged means that a port came up or went down, or that its addresses
	// changed: LID, GIDs, partitions.
	AddressChanged bool
}

// Event waits for the next event, until Interrupt: the error wraps os.ErrDeadlineExceeded
// then. One goroutine may wait.
func (d *Device) Event() (Event, error) {
	raw, err := d.events.SyscallConn()
	if err != nil {
		return Event{}, err
	}
	var v words
	var failed error
	if err := raw.Read(func(uintptr) bool {
		v = words{d.context}
		failed = d.lib.do(getAsyncEvent, &v, nil)
		return !errors.Is(failed, syscall.EAGAIN)
	}); err != nil {
		return Event{}, err
	}
	if failed != nil {
		return Event{}, failed
	}
	e := Event{Fatal: v[1] == eventFatal, AddressChanged: v[1] >= eventPortActive && v[1] <= eventPKey || v[1] == eventReregister || v[1] == eventGID, Text: fmt.Sprintf("event %d", v[1])}
	name := words{v[1]}
	if d.lib.do(eventText, &name, nil) == nil {
		e.Text = device.Text(name[0])
	}
	return e, d.lib.do(ackAsyncEvent, &v, nil)
}

// Interrupt ends every present and future wait for an event.
func (d *Device) Interrupt() { d.events.SetReadDeadline(past) }

// closeOnce runs a close once and keeps its error.
type closeOnce struct {
	once sync.Once
	err  error
}

func (h *closeOnce) close(f func() error) error {
	h.once.Do(func() { h.err = f() })
	return h.err
}
