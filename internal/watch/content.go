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
	data, err := ReadFile(path, maxFile)
	if err != nil {
		return sum, err
	}
	return sha256.Sum256(data), nil
}

// ReadFile reads a file that others may replace by anything: it must be a regular one of at most limit bytes.
func ReadFile(path string, limit int64) ([]byte, error) {
	// A named pipe would block the open for ever.
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%q is not a regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("%q is longer than %d bytes", path, limit)
	}
	return data, nil
}
