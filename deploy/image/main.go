package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// binaries are given as PLATFORM=FILE, once for each platform.
type binaries []Binary

func (b *binaries) String() string { return fmt.Sprint(*b) }

func (b *binaries) Set(text string) error {
	platform, file, ok := strings.Cut(text, "=")
	if !ok {
		return fmt.Errorf("%q is not PLATFORM=FILE, such as linux/amd64=bin/kvsteer", text)
	}
	*b = append(*b, Binary{Platform: platform, File: file})
	return nil
}

func run(args []string) error {
	var o Options
	var seconds int64
	var out, name string
	flags := flag.NewFlagSet("image", flag.ContinueOnError)
	flags.Var((*binaries)(&o.Binaries), "binary", "PLATFORM=FILE, for each platform")
	flags.StringVar(&o.Version, "version", "devel", "the version, for the label")
	flags.StringVar(&o.Revision, "revision", "", "the commit, for the label")
	flags.StringVar(&o.Licences, "licences", "../..", "folder with LICENSE and THIRD_PARTY_NOTICES")
	flags.Int64Var(&seconds, "date", 0, "date of the image and of its files, in seconds since 1970: that of the commit")
	flags.StringVar(&out, "out", "", "folder that the OCI layout is written to, as oci and as kvsteer.tar")
	flags.StringVar(&name, "name", "docker.io/library/kvsteer", "name of the image for whoever loads kvsteer.tar")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if out == "" || flags.NArg() > 0 {
		return fmt.Errorf("--out is needed, and no arguments: %q", flags.Args())
	}
	o.Date = time.Unix(seconds, 0).UTC()
	index, err := Build(o)
	if err != nil {
		return err
	}
	digest, err := Write(index, out, name, o.Version)
	if err != nil {
		return err
	}
	_, err = fmt.Printf("%s/oci %s\n", out, digest)
	return err
}
