// Package repocheck holds the repository to its own rules: import layers, which package may use which library, and the parts of
// docs/ that are generated from the code. It has tests only; make generate writes the generated parts again.
package repocheck
