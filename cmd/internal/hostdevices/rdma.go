package hostdevices

import (
	"errors"
	"log/slog"
	"os"

	"github.com/cascadeinfer/cascade/migrator/device"
	"github.com/cascadeinfer/cascade/migrator/device/verbs"
)

// RDMA returns the library of this host's RDMA devices; nil without a library
// or a device. Tests name the library of a fake device.
func RDMA(log *slog.Logger) *verbs.Library {
	lib, err := verbs.Open(os.Getenv("CASCADE_TEST_LIBIBVERBS"))
	if errors.Is(err, device.ErrNoLibrary) || errors.Is(err, device.ErrNoCgo) {
		log.Debug("no RDMA", "err", err)
		return nil
	}
	var names []string
	if err == nil {
		names, err = lib.Devices()
	}
	if err != nil {
		log.Warn("RDMA devices not usable", "error", err)
		return nil
	}
	if len(names) == 0 {
		return nil
	}
	log.Info("RDMA devices found", "devices", names)
	return lib
}
