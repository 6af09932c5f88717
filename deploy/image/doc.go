// Command image builds kvsteer's container image without Docker: an OCI layout with one image for each platform, and the same as one
// file. make image runs it.
//
// An image is made from scratch and has two layers: the licences, and the static binary at /kvsteer, which is its entrypoint. It runs as
// user 65532. There is neither a shell nor a library in it, and there are no authorities of certificates: kvsteer trusts only those
// that its configuration names.
//
// The same binaries, licences and date give the same bytes and so the same digest: file times, owners and the image's own date come from
// the options, and nothing else varies.
package main
