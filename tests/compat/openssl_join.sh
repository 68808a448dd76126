#!/usr/bin/env bash
# A machine joins with nothing but openssl, curl and the shell: proof that the protocol is Kubernetes' and can be followed by hand.
#
#   openssl_join.sh https://HOST:PORT TOKEN PIN NODE DIRECTORY
#
# Rules kept here (docs/protocol/cluster-info.md#signature, docs/protocol/discovery-and-join.md): the token's secret is sent to
# nobody before the CA is trusted, and the CA is trusted only when the HMAC under that secret and the pin are right and a second,
# verified fetch brings the same bytes.
set -euo pipefail

server=$1 token=$2 pin=$3 node=$4 directory=$5
id=${token%%.*} secret=${token#*.}
umask 077
mkdir -p "$directory"
cd "$directory"

fail() { echo "$*" >&2; exit 1; }
base64url() { openssl base64 -A | tr '+/' '-_' | tr -d '='; }
# The value of a key in the JSON on standard input, as it is written there: escapes stay.
value() { sed -nE "s,.*\"$1\": *\"(([^\"\\\\]|\\\\.)*)\".*,\\1,p" | head -n 1; }
# Takes away the escapes that JSON writes in such texts, but not the last line end, as $(…) would.
unescaped() { sed 's|\\"|"|g' | { IFS= read -r text; printf '%b' "$text"; }; }
call() { curl --silent --show-error --fail-with-body --max-time 30 "$@"; }

path=/api/v1/namespaces/kube-public/configmaps/cluster-info

echo "1. cluster-info, from a server that is not trusted yet"
call --insecure "$server$path" > first.json
value kubeconfig < first.json | unescaped > cluster-info.conf
signature=$(value "jws-kubeconfig-$id" < first.json)
[[ -n $signature ]] || fail "cluster-info has no signature for the token id $id"

echo "2. the signature, with the secret that only the cluster and we know"
# openssl takes an HMAC key from its command line only, where users of this machine can read it: do not do this on a shared one.
header=$(printf '{"alg":"HS256","kid":"%s"}' "$id" | base64url)
mac=$(printf '%s.%s' "$header" "$(base64url < cluster-info.conf)" | openssl dgst -sha256 -hmac "$secret" -binary | base64url)
[[ $signature == "$header..$mac" ]] || fail "the signature of cluster-info is not made with this token"

echo "3. the certificate authority, and its pin"
sed -n 's/^ *certificate-authority-data: *//p' cluster-info.conf | openssl base64 -d -A > ca.crt
found=sha256:$(openssl x509 -in ca.crt -pubkey -noout | openssl pkey -pubin -outform der | openssl dgst -sha256 -r | cut -d ' ' -f 1)
[[ $found == "$pin" ]] || fail "the certificate authority is $found, not $pin"

echo "4. cluster-info again, from a server with a certificate of that authority"
address=$(sed -n 's/^ *server: *//p' cluster-info.conf)
call --cacert ca.crt "$address$path" > second.json
[[ $(value kubeconfig < first.json) == "$(value kubeconfig < second.json)" ]] || fail "cluster-info changed between two fetches"

echo "5. a key, and a request for a certificate, sent with the token"
openssl genpkey -quiet -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out client.key 2> /dev/null ||
  openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out client.key
openssl req -new -key client.key -subj "/O=system:nodes/CN=system:node:$node" -out client.csr
requests=$address/apis/certificates.k8s.io/v1/certificatesigningrequests
printf 'header = "Authorization: Bearer %s"\n' "$token" > token.curl # not on a command line, where everybody could read it
call --cacert ca.crt --config token.curl --header 'Content-Type: application/json' --data @- "$requests" > created.json << JSON
{
  "apiVersion": "certificates.k8s.io/v1",
  "kind": "CertificateSigningRequest",
  "metadata": {"name": "node-csr-$node"},
  "spec": {
    "request": "$(openssl base64 -A -in client.csr)",
    "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
    "usages": ["digital signature", "client auth"]
  }
}
JSON

echo "6. wait for the certificate"
exec 3< <(exec curl --silent --no-buffer --max-time 30 --cacert ca.crt --config token.curl \
  "$requests?watch=true&fieldSelector=metadata.name%3Dnode-csr-$node")
watcher=$!
certificate=
while [[ -z $certificate ]] && read -r -u 3 event; do
  certificate=$(value certificate <<< "$event")
done
kill "$watcher" 2> /dev/null || true
[[ -n $certificate ]] || fail "no certificate was issued"
openssl base64 -d -A <<< "$certificate" > client.crt

echo "7. is it ours, and from that authority?"
openssl verify -CAfile ca.crt -purpose sslclient client.crt
[[ $(openssl x509 -in client.crt -pubkey -noout) == "$(openssl pkey -in client.key -pubout)" ]] || fail "it is for another key"
openssl x509 -in client.crt -noout -subject -nameopt RFC2253

echo "8. use it"
identity=(--cacert ca.crt --cert client.crt --key client.key)
call "${identity[@]}" --header 'Content-Type: application/json' --data '{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}' \
  "$address/apis/authentication.k8s.io/v1/selfsubjectreviews" > me.json
echo "the server knows us as $(value username < me.json)"
call "${identity[@]}" --header 'Content-Type: application/json' \
  --data "{\"apiVersion\":\"v1\",\"kind\":\"Node\",\"metadata\":{\"name\":\"$node\"}}" "$address/api/v1/nodes" > node.json
echo "registered node $(value name < node.json)"
