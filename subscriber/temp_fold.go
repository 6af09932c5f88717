package subscriber

import "time"

func (f *fold) fold(payload []byte, now time.Time) (foldStats, error) { return foldStats{}, nil }
func (f *fold) reset(cause Cause) {}
func (f *fold) connected(yes bool) {}
