package kvport

import (
	"errors"
	"fmt"
	"os"

	"github.com/cascadeinfer/cascade/engine/api"
	"github.com/cascadeinfer/cascade/migrator/transport"
)

func closeFiles(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// mapMemory maps the memory of a welcome, and owns its files. Host memory of several handles becomes one Memory.
func (c *Client) mapMemory(w *api.Welcome, files []*os.File) (*transport.Memory, error) {
	if w.Handles[0].Kind == api.CUDA || len(files) < len(w.Handles) {
		return c.mapDeviceMemory(w, files)
	}
	sizes := make([]int64, len(w.Handles))
	for i, h := range w.Handles {
		if sizes[i] = h.Bytes; h.Kind != api.Memfd {
			closeFiles(files)
			return nil, fmt.Errorf("handle %d is %s, handle 0 %s: this migrator maps memory of one kind", i, h.Kind, api.Memfd)
		}
	}
	return transport.MapFiles(files, sizes, func(begin []int64) transport.Layout { return layoutOf(w, begin) })
}

// layoutOf returns the layout of a memory in which that of each handle begins at a place.
func layoutOf(w *api.Welcome, begin []int64) transport.Layout {
	l := transport.Layout{Blocks: w.Blocks}
	for _, r := range w.Regions {
		l.Regions = append(l.Regions, transport.Region{Offset: begin[r.Handle] + r.Offset, Stride: r.Stride, Bytes: r.Bytes})
	}
	return l
}

// mapDeviceMemory maps device memory with Config.Device.
func (c *Client) mapDeviceMemory(w *api.Welcome, files []*os.File) (*transport.Memory, error) {
	var err error
	switch {
	case c.cfg.Device == nil:
		err = errors.New("it is on a device, but this migrator has no device configured")
	case len(w.Handles) > 1:
		err = fmt.Errorf("it has %d handles on a device: this migrator maps one", len(w.Handles))
	}
	if err != nil {
		closeFiles(files)
		return nil, err
	}
	var file *os.File
	if len(files) > 0 {
		file = files[0]
	}
	m, err := c.cfg.Device(w.Handles[0].CUDA, file, layoutOf(w, []int64{0}))
	if err != nil {
		return nil, fmt.Errorf("it is on a device: %w", err)
	}
	return m, nil
}
