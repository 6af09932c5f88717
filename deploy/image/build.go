package main

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Binary is kvsteer for one platform.
type Binary struct {
	Platform string // such as linux/amd64
	File     string
}

// Options say what is in the images.
type Options struct {
	Binaries []Binary
	Version  string
	Revision string // of the source; "" for none
	Licences string // folder of the files below
	Date     time.Time
}

// user is nobody's name: a number that other images use for users without rights too, and that Kubernetes can tell from root.
const user = "65532:65532"

// licences are what a copy of the binary must come with.
var licences = []string{"LICENSE", "THIRD_PARTY_NOTICES"}

// machines are the platforms that can be built.
var machines = map[string]elf.Machine{"linux/amd64": elf.EM_X86_64, "linux/arm64": elf.EM_AARCH64}

// Build makes an index of one image for each binary, in the order of their platforms. It fails when a binary is not a static one for
// its platform.
func Build(o Options) (v1.ImageIndex, error) {
	if len(o.Binaries) == 0 {
		return nil, errors.New("no binary is given")
	}
	var files []file
	for _, name := range licences {
		content, err := os.ReadFile(filepath.Join(o.Licences, name))
		if err != nil {
			return nil, err
		}
		files = append(files, file{name: name, mode: 0o644, content: content})
	}
	notices, err := layer(o.Date, files...)
	if err != nil {
		return nil, err
	}
	sorted := slices.SortedFunc(slices.Values(o.Binaries), func(a, b Binary) int { return strings.Compare(a.Platform, b.Platform) })
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for i, b := range sorted {
		if i > 0 && sorted[i-1].Platform == b.Platform {
			return nil, fmt.Errorf("%s is given twice", b.Platform)
		}
		image, platform, err := build(o, b, notices)
		if err != nil {
			return nil, fmt.Errorf("%s for %s: %w", b.File, b.Platform, err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: platform}})
	}
	return index, nil
}

func build(o Options, b Binary, notices v1.Layer) (v1.Image, *v1.Platform, error) {
	machine, ok := machines[b.Platform]
	if !ok {
		return nil, nil, errors.New("an unknown platform")
	}
	content, err := os.ReadFile(b.File)
	if err != nil {
		return nil, nil, err
	}
	if err := static(content, machine); err != nil {
		return nil, nil, err
	}
	binary, err := layer(o.Date, file{name: "kvsteer", mode: 0o755, content: content})
	if err != nil {
		return nil, nil, err
	}
	platform, err := v1.ParsePlatform(b.Platform)
	if err != nil {
		return nil, nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	// The licences first: they change least, and a layer that is known is not sent again.
	image, err = mutate.Append(image,
		mutate.Addendum{Layer: notices, History: v1.History{Created: v1.Time{Time: o.Date}, CreatedBy: "licences"}},
		mutate.Addendum{Layer: binary, History: v1.History{Created: v1.Time{Time: o.Date}, CreatedBy: "kvsteer " + o.Version}},
	)
	if err != nil {
		return nil, nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, nil, err
	}
	config = config.DeepCopy()
	config.Architecture, config.OS = platform.Architecture, platform.OS
	config.Created = v1.Time{Time: o.Date}
	config.Config.User = user
	config.Config.Entrypoint = []string{"/kvsteer"}
	config.Config.WorkingDir = "/"
	config.Config.Labels = map[string]string{
		"org.opencontainers.image.title":       "kvsteer",
		"org.opencontainers.image.description": "Sends each LLM request to the engine replica that already holds most of its prompt in its KV cache",
		"org.opencontainers.image.licenses":    "Apache-2.0",
		"org.opencontainers.image.version":     o.Version,
	}
	if o.Revision != "" {
		config.Config.Labels["org.opencontainers.image.revision"] = o.Revision
	}
	image, err = mutate.ConfigFile(image, config)
	return image, platform, err
}

// static is an error unless a binary runs on the machine without anything beside it.
func static(binary []byte, machine elf.Machine) error {
	f, err := elf.NewFile(bytes.NewReader(binary))
	if err != nil {
		return fmt.Errorf("no binary of Linux: %w", err)
	}
	defer f.Close()
	if f.Machine != machine {
		return fmt.Errorf("it is a binary for %v, not for %v", f.Machine, machine)
	}
	if f.Type != elf.ET_EXEC && f.Type != elf.ET_DYN {
		return fmt.Errorf("it is no program: %v", f.Type)
	}
	if slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		return errors.New("it is not static (build it with CGO_ENABLED=0)")
	}
	return nil
}

type file struct {
	name    string
	mode    int64
	content []byte
}

// layer is a layer of files in the root folder, root's all, so that the user of the image cannot change them.
func layer(date time.Time, files ...file) (v1.Layer, error) {
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, f := range files {
		header := &tar.Header{Typeflag: tar.TypeReg, Name: f.name, Size: int64(len(f.content)), Mode: f.mode, ModTime: date, Format: tar.FormatPAX}
		if err := w.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.content); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive.Bytes())), nil }
	return tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer))
}
