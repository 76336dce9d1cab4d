# The images as buildx bake builds them. `python3 -m image build` sets every variable from its plan; the defaults
# here, equal to the Dockerfile's, serve a plain `docker buildx bake`.

variable "BASE_IMAGE" { default = "debian:trixie-slim" }
variable "BASE_IDENTITY" { default = "" }
variable "GPU_ARCHS" { default = "8.9" }
variable "FLASH_ATTN" { default = "none" }
variable "WHEELHOUSE" { default = "image/empty" }
variable "DEBIAN_MIRROR" { default = "http://deb.debian.org/debian" }
variable "PYPI_INDEX" { default = "https://pypi.org/simple" }
variable "CA_BUNDLE" { default = "" }
variable "TAGS" { default = "dyno:latest" }
variable "MAX_JOBS" { default = "1" }
variable "BUILD_ID" { default = "" }
variable "LOCK_DIGEST" { default = "" }
variable "SOURCE_DATE_EPOCH" { default = "1754006400" }

group "default" { targets = ["runtime"] }

target "_stack" {
  context = "."
  contexts = { wheelhouse = WHEELHOUSE }
  args = {
    BASE_IMAGE = BASE_IMAGE
    BASE_IDENTITY = BASE_IDENTITY
    GPU_ARCHS = GPU_ARCHS
    FLASH_ATTN = FLASH_ATTN
    DEBIAN_MIRROR = DEBIAN_MIRROR
    PYPI_INDEX = PYPI_INDEX
    BUILD_ID = BUILD_ID
    LOCK_DIGEST = LOCK_DIGEST
    SOURCE_DATE_EPOCH = SOURCE_DATE_EPOCH
  }
  secret = concat(["id=jobs,env=MAX_JOBS"], CA_BUNDLE == "" ? [] : ["id=ca,src=${CA_BUNDLE}"])
  tags = split(",", TAGS)
  platforms = ["linux/amd64"]
}

target "runtime" {
  inherits = ["_stack"]
  target = "runtime"
}

target "devel" {
  inherits = ["_stack"]
  target = "devel"
}
