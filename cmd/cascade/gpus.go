package main

import (
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/cmd/internal/cli"
	"github.com/cascadeinfer/cascade/cmd/internal/gpuset"
)

// newGPUs returns the GPUs of this process, which opens them at first use. Tests name the libraries
// of a fake driver.
func newGPUs(log *slog.Logger) *gpuset.Set {
	return gpuset.New(gpuset.Config{CUDA: cudaLibrary(), NVML: nvmlLibrary(), Logger: log})
}

func cudaLibrary() string { return os.Getenv("CASCADE_TEST_LIBCUDA") }

func nvmlLibrary() string { return os.Getenv("CASCADE_TEST_LIBNVML") }

// deviceFlag adds --device.
func deviceFlag(c *cobra.Command, device *string) {
	c.Flags().StringVar(device, "device", gpuset.Host, "where emulated engines keep their KV: host, or cuda for the memory of a GPU")
	cli.CompleteFrom(c, "device", []string{gpuset.Host, gpuset.CUDA})
}
