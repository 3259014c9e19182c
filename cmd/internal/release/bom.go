package main

import (
	"bytes"
	"debug/buildinfo"
	"fmt"
	"runtime/debug"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// billOfMaterials returns the modules of the program, as the linker recorded them ("go version -m"),
// in CycloneDX's JSON. It has no serial number and no time of its own, so that a program has one.
func billOfMaterials(program string, c config) ([]byte, error) {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", program, err)
	}
	bom := cdx.NewBOM()
	main := component(&info.Main)
	main.Type, main.Version = cdx.ComponentTypeApplication, c.version
	main.BOMRef, main.PackageURL = "pkg:golang/"+info.Main.Path, "pkg:golang/"+info.Main.Path
	bom.Metadata = &cdx.Metadata{Timestamp: c.created.Format(time.RFC3339), Component: &main}
	all := []cdx.Component{{
		Type: cdx.ComponentTypeLibrary, Name: "std", Version: info.GoVersion,
		BOMRef: "pkg:golang/std@" + info.GoVersion, PackageURL: "pkg:golang/std@" + info.GoVersion,
	}}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		all = append(all, component(m))
	}
	bom.Components = &all
	var out bytes.Buffer
	encoder := cdx.NewBOMEncoder(&out, cdx.BOMFileFormatJSON)
	encoder.SetPretty(true)
	if err := encoder.Encode(bom); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// component returns a module as a component, with its checksum of go.sum.
func component(m *debug.Module) cdx.Component {
	url := "pkg:golang/" + m.Path + "@" + m.Version
	c := cdx.Component{Type: cdx.ComponentTypeLibrary, Name: m.Path, Version: m.Version, BOMRef: url, PackageURL: url}
	if m.Sum != "" {
		c.Properties = &[]cdx.Property{{Name: "golang:sum", Value: m.Sum}}
	}
	return c
}
