package envoy

import (
	"fmt"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
)

// File is one file that belongs to a configuration.
type File struct {
	Name string // without a folder
	Text []byte
}

// Secrets gives the files of Options.SecretsDir. They hold no certificate and no key, only the paths of both: Envoy reads them again when
// they are replaced, which it does for no path in the configuration itself. There is none without SecretsDir or without TLS.
func Secrets(o Options) ([]File, error) {
	if err := o.ValidateFilter(); err != nil {
		return nil, err
	}
	b := &builder{Options: o.withDefaults()}
	if !b.secrets() {
		return nil, nil
	}
	var files []File
	for _, side := range []struct {
		tls      TLS
		ca, cert string
	}{{b.RouterTLS, secretRouterCA, secretRouterCert}, {b.EngineTLS, secretEngineCA, secretEngineCert}} {
		if !side.tls.On() {
			continue
		}
		secrets := []*tlsv3.Secret{{Name: side.ca, Type: &tlsv3.Secret_ValidationContext{ValidationContext: side.tls.validation()}}}
		if side.tls.CertFile != "" {
			secrets = append(secrets, &tlsv3.Secret{Name: side.cert, Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: side.tls.certificate()}})
		}
		for _, s := range secrets {
			f, err := b.secretFile(s)
			if err != nil {
				return nil, err
			}
			files = append(files, f)
		}
	}
	return files, nil
}

func (b *builder) secretFile(s *tlsv3.Secret) (File, error) {
	response := &discoveryv3.DiscoveryResponse{}
	response.Resources = append(response.Resources, b.pack(s))
	if b.err != nil {
		return File{}, fmt.Errorf("pack secret %s: %w", s.Name, b.err)
	}
	root, err := tree(response)
	if err != nil {
		return File{}, fmt.Errorf("secret %s: %w", s.Name, err)
	}
	root.arrange(first(), last())
	text := []byte("# Paths for Envoy, written by `kvsteer envoy --secrets`. Envoy reads the files again when they are replaced.\n")
	return File{Name: s.Name + ".yaml", Text: append(text, root.yaml()...)}, nil
}
