// Package watch tells when the content of any of a few files has changed: configuration, certificates, keys, tokens.
//
//	w, err := watch.New(watch.Options{Paths: []string{"/etc/kvsteer/kvsteer.yaml"}, Log: log})
//	cfg := load()                // after New: what changes from here on is told
//	err = w.Run(ctx, func() { reload() })
//
// What counts is content, not time stamps: a file that is written again with the same bytes has not changed.
//
// # How files are followed
//
// The folders are watched, not the files, because a file that is replaced by a rename is another file of the same name. On the
// way to a file every symbolic link counts, so that the usual ways of replacing a file are all seen:
//
//	kvsteer.yaml written in place
//	kvsteer.yaml.tmp → kvsteer.yaml                             an editor, a deployment tool
//	kvsteer.yaml → ..data/kvsteer.yaml, ..data → ..2026_11_29   a Kubernetes ConfigMap or Secret: ..data is replaced
//	live/site/cert.pem → ../../archive/site/cert7.pem           a certificate client
//	current → release-42, current/kvsteer.yaml                  a folder that is a link
//
// Beside that, all files are read every Options.Poll. It is what finds a change on a file system that announces none (network mounts), or where the
// kernel's limit of watches is used up; the latter is said once.
//
// A file that is gone or cannot be read is no change: who uses it keeps what it has. It is said once, and when the file is back,
// its content counts.
//
// # Concurrency
//
// Run calls changed from its own goroutine, never twice at a time; what changes meanwhile is told afterwards. A change is told
// after Options.Settle of quiet, so that several files written together are told once, and at the latest after ten times Settle. Run
// returns nil when its context ends, after its goroutines have ended. It may be called once.
package watch
