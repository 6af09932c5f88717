package watch

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// maxFile bounds what is read of a file: far above any configuration or certificate.
const maxFile = 16 << 20

// state is what was last known of a file.
type state struct {
	sum     [sha256.Size]byte // of the last content that could be read; zero when none was
	problem string            // why it cannot be read, "" when it can
}

// read looks at a file. Where it cannot be read, the sum is that of before.
func read(path string, before state) state {
	before.problem = ""
	sum, err := digest(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		before.problem = "the file is gone"
	case err != nil:
		before.problem = err.Error()
	default:
		before.sum = sum
	}
	return before
}

func digest(path string) (sum [sha256.Size]byte, err error) {
	// A named pipe would block the open for ever.
	info, err := os.Stat(path)
	if err != nil {
		return sum, err
	}
	if !info.Mode().IsRegular() {
		return sum, errors.New("not a regular file")
	}
	f, err := os.Open(path)
	if err != nil {
		return sum, err
	}
	defer f.Close()
	h := sha256.New()
	n, err := io.Copy(h, io.LimitReader(f, maxFile+1))
	if err != nil {
		return sum, err
	}
	if n > maxFile {
		return sum, fmt.Errorf("longer than %d bytes", maxFile)
	}
	h.Sum(sum[:0])
	return sum, nil
}
